#include "tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/utf8.h"

namespace trireme {

namespace {

using Places = std::vector<std::size_t>;

/// Takes the places below `end` out of ascending ones; counted from `begin`.
Places take_places(Places& places, std::size_t begin, std::size_t end) {
  const auto last = std::lower_bound(places.begin(), places.end(), end);
  Places taken(places.begin(), last);
  places.erase(places.begin(), last);
  for (std::size_t& place : taken) place -= begin;
  return taken;
}

[[noreturn]] void refuse_place() {
  throw DataError(
      "the tokenizer writes the text anew, or has no token for a part of it, where the assistant's "
      "tokens begin or end: they cannot be told from the others");
}

}  // namespace

/// What encode_and_find looks for: places of the text, of a piece of it, and of a part of that, not
/// found yet; and what it found.
struct BpeTokenizer::Search {
  const char* text = nullptr;
  Places of_text, of_piece, of_part;
  std::vector<std::size_t> tokens;
  Normalizer::Scratch normalizer;
  PreTokenizer::Scratch pre_tokenizer;

  /// All of `places` are in `token`.
  void find(Places& places, std::size_t token) {
    tokens.resize(tokens.size() + places.size(), token);
    places.clear();
  }
};

struct BpeTokenizer::Scratch {
  Normalizer::Scratch normalizer;
  PreTokenizer::Scratch pre_tokenizer;
  BpeModel::Scratch model;
  std::vector<AddedTokenFinder::Piece> raw_pieces, normalized_pieces;
  Search* search = nullptr;  // of this call; usually none
};

/// Lends one working space for one call, so that encode() is thread-safe and keeps warm caches.
class BpeTokenizer::Lease {
 public:
  explicit Lease(const BpeTokenizer& owner) : owner_(owner) {
    {
      const std::lock_guard lock(owner.mutex_);
      if (!owner.idle_.empty()) {
        scratch_ = std::move(owner.idle_.back());
        owner.idle_.pop_back();
      }
    }
    if (!scratch_) scratch_ = std::make_unique<Scratch>();
  }
  ~Lease() {
    scratch_->search = nullptr;
    const std::lock_guard lock(owner_.mutex_);
    owner_.idle_.push_back(std::move(scratch_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Scratch& operator*() const { return *scratch_; }

 private:
  const BpeTokenizer& owner_;
  std::unique_ptr<Scratch> scratch_;
};

namespace {

std::vector<AddedToken> select(const std::vector<AddedToken>& tokens, const Normalizer& normalizer,
                               bool normalized) {
  std::vector<AddedToken> chosen;
  Normalizer::Scratch scratch;
  for (const AddedToken& token : tokens) {
    if (token.normalized != normalized) continue;
    chosen.push_back(token);
    if (!normalized) continue;
    chosen.back().content = normalizer.apply(token.content, Before::kNothing, scratch);
    if (chosen.back().content.empty()) chosen.pop_back();  // as the peer, which never finds it
  }
  return chosen;
}

/// By name; a special one goes before one that a vocabulary has as text (Gemma's </s> is of HTML).
std::optional<std::int32_t> find_end_token(
    const std::unordered_map<std::string, std::int32_t>& names, const std::vector<bool>& special) {
  constexpr std::array<std::string_view, 8> kNames = {
      "<|endoftext|>", "<|end_of_text|>", "</s>",  "<eos>",
      "<|eos|>",       "[EOS]",           "<EOS>", "<｜end▁of▁sentence｜>"};
  std::optional<std::int32_t> plain;
  for (const std::string_view name : kNames) {
    const auto found = names.find(std::string(name));
    if (found == names.end()) continue;
    if (special[static_cast<std::size_t>(found->second)]) return found->second;
    if (!plain) plain = found->second;
  }
  return plain;
}

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// A letter, then a blank or its mark.
bool holds_word_end(std::string_view text) {
  for (; text.size() > 1; text.remove_prefix(1)) {
    const std::string_view after = text.substr(1);
    if (is_ascii_letter(text[0]) && (after[0] == ' ' || after.starts_with(kWordMark))) return true;
  }
  return false;
}

}  // namespace

BpeTokenizer::BpeTokenizer(BpeParts parts)
    : path_(std::move(parts.path)),
      hash_(std::move(parts.hash)),
      file_hash_(std::move(parts.file_hash)),
      normalizer_(std::move(parts.normalizer)),
      pre_tokenizer_(std::move(parts.pre_tokenizer)),
      decoder_(std::move(parts.decoder)),
      raw_finder_(select(parts.added_tokens, normalizer_, false)),
      normalized_finder_(select(parts.added_tokens, normalizer_, true)),
      symbols_(parts.vocabulary.symbols),
      whole_piece_first_(parts.vocabulary.whole_piece_first),
      model_(std::move(parts.vocabulary)),
      texts_(std::move(parts.texts)),
      special_(texts_.size()),
      names_(std::move(parts.names)) {
  for (const AddedToken& token : parts.added_tokens) {
    special_[static_cast<std::size_t>(token.id)] = token.special;
    const bool stays = !token.single_word && !token.strips_left && !token.strips_right &&
                       token.content.find('\n') == std::string::npos;
    tokens_stay_in_lines_ = tokens_stay_in_lines_ && stays;
  }
  end_token_ = find_end_token(names_, special_);
  // As the peer: a token that is looked for in normalized text decodes to that form.
  for (const AddedToken& token : parts.added_tokens) {
    Normalizer::Scratch scratch;
    if (!token.normalized || normalizer_.empty()) continue;
    texts_[static_cast<std::size_t>(token.id)] =
        normalizer_.apply(token.content, Before::kNothing, scratch);
  }
  if (symbols_ == BpeSymbols::kBytes) return;
  tokens_ = texts_;
  for (std::string& text : texts_) text = decoder_.text_of(std::move(text));
  blanks_divide_ = blanks_divide(parts.added_tokens);
}

BpeTokenizer::~BpeTokenizer() = default;

/// Whether a text may be cut between letter and blank: a mark alone, nothing lies across.
bool BpeTokenizer::blanks_divide(const std::vector<AddedToken>& added) const {
  const bool apart = model_.words_are_apart() && !whole_piece_first_ &&
                     normalizer_.only_replaces(" ", kWordMark) && pre_tokenizer_.never_divides(" ");
  return apart && std::none_of(added.begin(), added.end(), [](const AddedToken& token) {
           return token.single_word || token.strips_left || token.strips_right ||
                  holds_word_end(token.content);
         });
}

void BpeTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  const Lease lease(*this);
  Scratch& scratch = *lease;
  Before before = Before::kNothing;
  while (!text.empty()) {
    const std::size_t valid = utf8_valid_prefix(text);
    encode_valid(text.substr(0, valid), before, scratch, ids);
    text.remove_prefix(valid);
    if (text.empty()) return;
    model_.encode(text.substr(0, 1), scratch.model, ids);
    text.remove_prefix(1);
    before = Before::kText;
  }
}

void BpeTokenizer::encode_valid(std::string_view text, Before before, Scratch& scratch,
                                std::vector<std::int32_t>& ids) const {
  scratch.raw_pieces.clear();
  raw_finder_.split(text, scratch.raw_pieces);
  Search* const search = scratch.search;
  for (const AddedTokenFinder::Piece& piece : scratch.raw_pieces) {
    if (search != nullptr) {
      const auto begin = static_cast<std::size_t>(piece.text.data() - search->text);
      search->of_piece = take_places(search->of_text, begin, begin + piece.text.size());
    }
    if (piece.id >= 0) {
      if (search != nullptr) search->find(search->of_piece, ids.size());
      ids.push_back(piece.id);
      before = Before::kToken;
      continue;
    }
    const std::string_view normal = normalizer_.apply(piece.text, before, scratch.normalizer);
    if (search != nullptr) move_to_normal(piece.text, normal, before, scratch);
    scratch.normalized_pieces.clear();
    normalized_finder_.split(normal, scratch.normalized_pieces);
    for (const AddedTokenFinder::Piece& part : scratch.normalized_pieces) {
      if (search != nullptr) {
        const auto begin = static_cast<std::size_t>(part.text.data() - normal.data());
        search->of_part = take_places(search->of_piece, begin, begin + part.text.size());
      }
      if (part.id >= 0) {
        if (search != nullptr) search->find(search->of_part, ids.size());
        ids.push_back(part.id);
      } else {
        encode_between_tokens(part.text, before, scratch, ids);
      }
      before = Before::kToken;
    }
    if (search != nullptr) search->find(search->of_piece, ids.size());
  }
}

void BpeTokenizer::encode_between_tokens(std::string_view text, Before before, Scratch& scratch,
                                         std::vector<std::int32_t>& ids) const {
  const std::string_view cut = pre_tokenizer_.split(text, before, scratch.pre_tokenizer);
  if (scratch.search != nullptr) move_to_cut(text, cut, before, scratch);
  for (const PreTokenizer::Range& range : scratch.pre_tokenizer.ranges) {
    const std::size_t first = ids.size();
    model_.encode(cut.substr(range.begin, range.end - range.begin), scratch.model, ids);
    if (scratch.search != nullptr) find_in(range, ids, first, scratch);
  }
  if (scratch.search != nullptr) scratch.search->find(scratch.search->of_part, ids.size());
}

std::vector<std::size_t> BpeTokenizer::encode_and_find(std::string_view text,
                                                       std::span<const std::size_t> places,
                                                       std::vector<std::int32_t>& ids) const {
  const Lease lease(*this);
  Search search;
  search.text = text.data();
  search.of_text.assign(places.begin(), places.end());
  (*lease).search = &search;
  expect(utf8_valid_prefix(text) == text.size(), "places are looked for in UTF-8");
  encode_valid(text, Before::kNothing, *lease, ids);
  expect(search.tokens.size() == places.size(), "{} of {} places found", search.tokens.size(),
         places.size());
  return std::move(search.tokens);
}

void BpeTokenizer::move_to_normal(std::string_view piece, std::string_view normal, Before before,
                                  Scratch& scratch) const {
  for (std::size_t& place : scratch.search->of_piece) {
    const std::string_view prefix =
        normalizer_.apply(piece.substr(0, place), before, scratch.search->normalizer);
    if (!normal.starts_with(prefix)) refuse_place();
    place = prefix.size();
  }
}

void BpeTokenizer::move_to_cut(std::string_view text, std::string_view cut, Before before,
                               Scratch& scratch) const {
  if (cut.data() == text.data()) return;
  for (std::size_t& place : scratch.search->of_part) {
    const std::string_view prefix =
        pre_tokenizer_.split(text.substr(0, place), before, scratch.search->pre_tokenizer);
    if (!cut.starts_with(prefix)) refuse_place();
    place = prefix.size();
  }
}

/// `ids` from `first` on are the range's.
void BpeTokenizer::find_in(PreTokenizer::Range range, std::span<const std::int32_t> ids,
                           std::size_t first, Scratch& scratch) const {
  Search& search = *scratch.search;
  if (search.of_part.empty() || search.of_part.front() >= range.end) return;
  std::size_t token = first, end = range.begin;  // of the tokens before `token`
  for (const std::size_t place : take_places(search.of_part, 0, range.end)) {
    while (token < ids.size() && end + bytes_of(ids[token]) <= place) end += bytes_of(ids[token++]);
    search.tokens.push_back(token);
  }
  for (; token < ids.size(); ++token) end += bytes_of(ids[token]);
  // A text that has no tokens of its own became another: nobody can say which token is which byte.
  if (end != range.end) refuse_place();
}

/// In the text that merges see.
std::size_t BpeTokenizer::bytes_of(std::int32_t id) const {
  const auto index = static_cast<std::size_t>(id);
  if (symbols_ == BpeSymbols::kBytes) return texts_[index].size();
  const std::string& token = tokens_[index];
  const bool is_byte = token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
  return is_byte ? 1 : token.size();
}

std::string BpeTokenizer::decode(std::span<const std::int32_t> ids, SpecialTokens special) const {
  if (symbols_ == BpeSymbols::kBytes) return Tokenizer::decode(ids, special);
  std::vector<std::string> tokens;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || (special == SpecialTokens::kSkip && is_special(id)))
      continue;
    if (const std::string& token = tokens_[static_cast<std::size_t>(id)]; !token.empty())
      tokens.push_back(token);
  }
  return decoder_.decode(std::move(tokens));
}

std::string_view BpeTokenizer::token_text(std::int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return texts_[static_cast<std::size_t>(id)];
}

bool BpeTokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < vocab_size() && special_[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> BpeTokenizer::token_id(std::string_view name) const {
  const auto found = names_.find(std::string(name));
  if (found == names_.end()) return std::nullopt;
  return found->second;
}

std::int32_t BpeTokenizer::vocab_size() const { return static_cast<std::int32_t>(texts_.size()); }

std::optional<std::int32_t> BpeTokenizer::end_token() const { return end_token_; }

std::size_t BpeTokenizer::split_position(std::string_view text, std::size_t from) const {
  if (symbols_ == BpeSymbols::kBytes) {
    return tokens_stay_in_lines_ ? pre_tokenizer_.split_position(text, from)
                                 : std::string_view::npos;
  }
  if (!blanks_divide_) return std::string_view::npos;
  for (std::size_t at = from; (at = text.find(' ', at + 1)) != std::string_view::npos;) {
    if (is_ascii_letter(text[at - 1])) return at;
  }
  return std::string_view::npos;
}

}  // namespace trireme
