#include "tokenizer/bpe_model.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/token_decoder.h"

namespace trireme {

namespace {
constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}
std::uint64_t mix(std::uint64_t key) { return (key ^ key >> 32) * 0x9E3779B97F4A7C15u; }

std::uint64_t hash_of(std::string_view piece) {
  std::uint64_t state = piece.size();
  while (piece.size() >= 8) {
    std::uint64_t word;
    std::memcpy(&word, piece.data(), 8);
    state = mix(state ^ word);
    piece.remove_prefix(8);
  }
  std::uint64_t tail = 0;
  std::memcpy(&tail, piece.data(), piece.size());
  return mix(mix(state ^ tail) ^ state);
}
}  // namespace

BpeModel::Scratch::Scratch() : entries_(kEntries) {}

BpeModel::BpeModel(BpeVocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {
  const auto id_of = [&](const std::string& token) {
    const auto found = vocabulary_.ids.find(token);
    return found == vocabulary_.ids.end() ? -1 : found->second;
  };
  const bool characters = vocabulary_.symbols == BpeSymbols::kCharacters;
  for (int value = 0; value < 256; ++value) {
    const auto byte = static_cast<unsigned char>(value);
    byte_ids_[value] = !characters                 ? id_of(std::string(1, static_cast<char>(byte)))
                       : vocabulary_.byte_fallback ? id_of(byte_token(byte))
                                                   : -1;
  }
  for (const auto& [token, id] : vocabulary_.ids) {
    longest_token_ = std::max(longest_token_, token.size());
    if (!characters || utf8_length(token) != static_cast<int>(token.size())) continue;
    const std::uint32_t point = utf8_decode(token);
    if (point >= character_ids_.size()) character_ids_.resize(point + 1, -1);
    character_ids_[point] = id;
  }
  words_are_apart_ = characters && marks_stand_first();
  const std::size_t capacity = std::bit_ceil(2 * vocabulary_.merges.size() + 16);
  shift_ = 64 - std::countr_zero(capacity);
  slots_.assign(capacity, {kEmpty, {}});
  std::uint32_t rank = 0;
  for (const BpeMerge& merge : vocabulary_.merges) {
    const std::uint64_t key = pair_key(merge.left, merge.right);
    std::size_t at = mix(key) >> shift_;
    while (slots_[at].pair != kEmpty && slots_[at].pair != key) at = (at + 1) & (capacity - 1);
    slots_[at] = {key, {rank++, merge.joined}};
  }
  vocabulary_.merges = {};
}

BpeModel::Joined BpeModel::find_merge(std::int32_t left, std::int32_t right) const noexcept {
  const std::uint64_t key = pair_key(left, right);
  for (std::size_t at = mix(key) >> shift_;; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].pair == key) return slots_[at].joined;
    if (slots_[at].pair == kEmpty) return {};
  }
}

bool BpeModel::marks_stand_first() const {
  if (!vocabulary_.ids.contains(std::string(kWordMark))) return false;
  std::unordered_map<std::int32_t, std::string_view> tokens;
  for (const auto& [token, id] : vocabulary_.ids) tokens.emplace(id, token);
  return std::none_of(vocabulary_.merges.begin(), vocabulary_.merges.end(), [&](const auto& merge) {
    return tokens[merge.right].starts_with(kWordMark) && !tokens[merge.left].ends_with(kWordMark);
  });
}

bool BpeModel::encode_whole(std::string_view piece, std::vector<std::int32_t>& ids) const {
  if (!vocabulary_.whole_piece_first || piece.size() > longest_token_) return false;
  const auto found = vocabulary_.ids.find(std::string(piece));
  if (found == vocabulary_.ids.end()) return false;
  ids.push_back(found->second);
  return true;
}

void BpeModel::encode(std::string_view piece, Scratch& scratch,
                      std::vector<std::int32_t>& ids) const {
  if (piece.empty()) return;
  if (!words_are_apart_) return encode_word(piece, scratch, ids);
  if (encode_whole(piece, ids)) return;
  std::size_t begin = 0, at = 0;
  while ((at = piece.find(kWordMark, at)) != std::string_view::npos) {
    if (at > begin && !piece.substr(0, at).ends_with(kWordMark)) {
      encode_word(piece.substr(begin, at - begin), scratch, ids);
      begin = at;
    }
    at += kWordMark.size();
  }
  encode_word(piece.substr(begin), scratch, ids);
}

void BpeModel::encode_word(std::string_view word, Scratch& scratch,
                           std::vector<std::int32_t>& ids) const {
  if (word.size() > Scratch::kKeyMax) return merge(word, scratch, ids);
  Scratch::Entry& entry = scratch.entries_[hash_of(word) >> 48];
  static_assert(Scratch::kEntries == std::size_t{1} << 16);
  if (entry.key_size == word.size() && std::memcmp(entry.key, word.data(), word.size()) == 0) {
    ids.insert(ids.end(), entry.ids, entry.ids + entry.id_count);
    return;
  }
  const std::size_t before = ids.size();
  merge(word, scratch, ids);
  const std::size_t count = ids.size() - before;
  if (count > Scratch::kIdsMax) return;
  entry.key_size = static_cast<std::uint8_t>(word.size());
  entry.id_count = static_cast<std::uint8_t>(count);
  std::memcpy(entry.key, word.data(), word.size());
  std::copy_n(ids.data() + before, count, entry.ids);
}

void BpeModel::merge(std::string_view word, Scratch& scratch,
                     std::vector<std::int32_t>& ids) const {
  // Where words are apart the whole piece was looked up, and a part of it is not.
  if (!words_are_apart_ && encode_whole(word, ids)) return;
  constexpr std::size_t kBytesMax = (std::size_t{1} << 31) - 1;
  if (word.size() > kBytesMax) {
    throw DataError(
        "{} of text that this tokenizer does not divide (symbols of a piece are counted in 32 "
        "bits). Put line breaks or blanks into it, or make it several documents",
        word.size());
  }
  if (vocabulary_.symbols == BpeSymbols::kBytes) {
    first_bytes(word, scratch.ids_);
  } else {
    first_characters(word, scratch.ids_);
  }
  constexpr std::size_t kShort = 48;
  if (scratch.ids_.size() <= kShort) {
    merge_short(scratch);
  } else {
    merge_long(scratch);
  }
  ids.insert(ids.end(), scratch.ids_.begin(), scratch.ids_.end());
}

void BpeModel::first_bytes(std::string_view word, std::vector<std::int32_t>& ids) const {
  ids.clear();
  bool after_unknown = false;
  for (const char c : word) {
    const std::int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    if (id >= 0) {
      ids.push_back(id);
    } else if (vocabulary_.unknown_id >= 0 && !(after_unknown && vocabulary_.fuse_unknown)) {
      ids.push_back(vocabulary_.unknown_id);
    }
    after_unknown = id < 0;
  }
}

bool BpeModel::append_bytes(std::string_view symbol, std::vector<std::int32_t>& ids) const {
  const auto id_of = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  if (!std::all_of(symbol.begin(), symbol.end(), [&](char c) { return id_of(c) >= 0; }))
    return false;
  for (const char c : symbol) ids.push_back(id_of(c));
  return true;
}

void BpeModel::first_characters(std::string_view word, std::vector<std::int32_t>& ids) const {
  ids.clear();
  // As the peer: an unknown token is written when the next is known, behind bytes between the two.
  bool unknown_waits = false;
  while (!word.empty()) {
    const int length = utf8_length(word);
    const std::string_view symbol = word.substr(0, static_cast<std::size_t>(std::max(length, 1)));
    word.remove_prefix(symbol.size());
    const std::uint32_t point = length > 0 ? utf8_decode(symbol) : 0xFFFFFFFF;
    const std::int32_t id = point < character_ids_.size() ? character_ids_[point] : -1;
    if (id >= 0) {
      if (unknown_waits) ids.push_back(vocabulary_.unknown_id);
      unknown_waits = false;
      ids.push_back(id);
    } else if (!append_bytes(symbol, ids) && vocabulary_.unknown_id >= 0) {
      if (unknown_waits && !vocabulary_.fuse_unknown) ids.push_back(vocabulary_.unknown_id);
      unknown_waits = true;
    }
  }
  if (unknown_waits) ids.push_back(vocabulary_.unknown_id);
}

void BpeModel::merge_short(Scratch& scratch) const {
  std::vector<std::int32_t>& ids = scratch.ids_;
  std::vector<std::uint32_t>& ranks = scratch.ranks_;  // of the pair (i, i + 1)
  const auto rank_at = [&](std::size_t i) {
    return i + 1 < ids.size() ? find_merge(ids[i], ids[i + 1]).rank : kNoRank;
  };
  ranks.resize(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ranks[i] = rank_at(i);
  while (ids.size() > 1) {
    const auto best = std::min_element(ranks.begin(), ranks.end());
    if (*best == kNoRank) return;
    const auto at = static_cast<std::size_t>(best - ranks.begin());
    ids[at] = find_merge(ids[at], ids[at + 1]).id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    ranks[at] = rank_at(at);
    if (at > 0) ranks[at - 1] = rank_at(at - 1);
  }
}

void BpeModel::merge_long(Scratch& scratch) const {
  std::vector<std::int32_t>& ids = scratch.ids_;
  const auto count = static_cast<std::int32_t>(ids.size());
  auto& previous = scratch.previous_;
  auto& next = scratch.next_;
  auto& heap = scratch.heap_;
  previous.resize(ids.size());
  next.resize(ids.size());
  heap.clear();
  const auto id_at = [&](std::int32_t i) -> std::int32_t& {
    return ids[static_cast<std::size_t>(i)];
  };
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto add = [&](std::int32_t at, std::int32_t right) {
    const std::uint32_t rank = find_merge(id_at(at), id_at(right)).rank;
    if (rank == kNoRank) return;
    heap.push_back({rank, at, id_at(at), id_at(right)});
    std::push_heap(heap.begin(), heap.end(), later);
  };
  for (std::int32_t i = 0; i < count; ++i) {
    previous[static_cast<std::size_t>(i)] = i - 1;
    next[static_cast<std::size_t>(i)] = i + 1 < count ? i + 1 : -1;
  }
  for (std::int32_t i = 0; i + 1 < count; ++i) add(i, i + 1);
  constexpr std::int32_t kGone = -1;
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate top = heap.back();
    heap.pop_back();
    const std::int32_t right = next[static_cast<std::size_t>(top.at)];
    // A candidate is stale once either of its symbols was joined to something else.
    if (right < 0 || id_at(top.at) != top.left || id_at(right) != top.right) continue;
    id_at(top.at) = find_merge(top.left, top.right).id;
    id_at(right) = kGone;
    const std::int32_t after = next[static_cast<std::size_t>(right)];
    next[static_cast<std::size_t>(top.at)] = after;
    next[static_cast<std::size_t>(right)] = -1;
    if (after >= 0) {
      previous[static_cast<std::size_t>(after)] = top.at;
      add(top.at, after);
    }
    const std::int32_t before = previous[static_cast<std::size_t>(top.at)];
    if (before >= 0) add(before, top.at);
  }
  std::erase(ids, kGone);
}

}  // namespace trireme
