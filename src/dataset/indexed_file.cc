#include "dataset/indexed_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/missing_path.h"

namespace trireme {
namespace {
constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::int64_t kHeaderBytes = 34;

/// The arrays stand at odd addresses.
template <class T>
T load(const std::byte* base, std::int64_t index) {
  T value;
  std::memcpy(&value, base + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}
}  // namespace

template <class Visitor>
auto IndexedFile::visit_tokens(std::int64_t first, Visitor&& visitor) const {
  const std::byte* data = bin_.bytes().data() + first * bytes_per_token_;
  switch (type_) {
    case TokenType::kU8:
      return visitor(reinterpret_cast<const std::uint8_t*>(data));
    case TokenType::kI8:
      return visitor(reinterpret_cast<const std::int8_t*>(data));
    case TokenType::kI16:
      return visitor(reinterpret_cast<const std::int16_t*>(data));
    case TokenType::kI64:
      return visitor(reinterpret_cast<const std::int64_t*>(data));
    case TokenType::kU16:
      return visitor(reinterpret_cast<const std::uint16_t*>(data));
    case TokenType::kI32:
      break;
  }
  return visitor(reinterpret_cast<const std::int32_t*>(data));
}

namespace {

/// The index of a prefix, which people take for a file's name: what they gave instead is reported.
std::string index_of(const std::string& prefix) {
  std::string index = prefix + ".idx";
  std::error_code none;
  if (is_there(index)) return index;
  for (const std::string_view suffix : {".bin", ".idx"}) {
    if (!prefix.ends_with(suffix)) continue;
    const std::string bare = prefix.substr(0, prefix.size() - suffix.size());
    throw DataError(
        "{}: token files are named by their PREFIX, without {}: \"{}\"{}", prefix, suffix, bare,
        is_there(bare + ".idx") ? "" : fmt::format(" (but {}.idx is not there either)", bare));
  }
  if (std::filesystem::is_regular_file(prefix, none)) {
    throw DataError(
        "{}: is no pair of token files, PREFIX.bin and PREFIX.idx. Make them of this text: `train "
        "tokenize --tokenizer byte|tokenizer.json --output PREFIX {}{}`, then give PREFIX",
        prefix, prefix.find(".jsonl") != std::string::npos ? "--jsonl KEY " : "", prefix);
  }
  throw DataError("{} (token files are PREFIX.bin and PREFIX.idx; `train tokenize` makes them)",
                  missing_path_text(index));
}

}  // namespace

IndexedFile::IndexedFile(const std::string& prefix)
    : prefix_(prefix), index_(index_of(prefix)), bin_(prefix + ".bin") {
  read_header();
  check_sequences();
  check_document_bounds();
  tokens_ = sequences_ == 0 ? 0 : first_token(sequences_ - 1) + length(sequences_ - 1);
  const auto used = tokens_ * bytes_per_token_;
  const auto there = static_cast<std::int64_t>(bin_.bytes().size());
  if (there > used) {
    log_warning("{}: {} bytes after the last sequence of {}.idx are not used", bin_path(),
                there - used, prefix_);
  }
  read_facts();
  open_mask();
}

void IndexedFile::read_header() {
  const std::string path = prefix_ + ".idx";
  const std::byte* data = index_.bytes().data();
  const auto size = static_cast<std::int64_t>(index_.bytes().size());
  const auto magic_bytes = std::min<std::int64_t>(size, kMagic.size());
  if (magic_bytes > 0 && std::memcmp(data, kMagic.data(), magic_bytes) != 0) {
    throw DataError(
        "{}: does not begin with MMIDIDX (it is no Megatron index). Name a prefix that "
        "`train tokenize` or Megatron's preprocess_data.py wrote",
        path);
  }
  if (size < kHeaderBytes) {
    throw DataError(
        "{}: has {} bytes, fewer than its header of {} (the file is truncated). Copy or "
        "tokenize it again",
        path, size, kHeaderBytes);
  }
  const auto version = load<std::uint64_t>(data + 9, 0);
  if (version != 1) throw DataError("{}: byte 9: version {}, only 1 is known", path, version);
  const auto code = static_cast<int>(data[17]);
  switch (code) {
    case 1:
    case 2:
      bytes_per_token_ = 1;
      break;
    case 3:
    case 8:
      bytes_per_token_ = 2;
      break;
    case 4:
      bytes_per_token_ = 4;
      break;
    case 5:
      bytes_per_token_ = 8;
      break;
    default:
      throw DataError(
          "{}: byte 17: dtype code {} is {} (token ids are integers: 1 uint8, 2 int8, 3 int16, "
          "4 int32, 5 int64, 8 uint16)",
          path, code, code == 6 || code == 7 ? "a type of real numbers" : "unknown");
  }
  type_ = static_cast<TokenType>(code);

  const auto sequences = load<std::uint64_t>(data + 18, 0);
  const auto bounds = load<std::uint64_t>(data + 26, 0);
  // Quotients, because a product with a hostile count overflows.
  const auto room = static_cast<std::uint64_t>(size - kHeaderBytes);
  if (sequences > room / 12 || bounds > (room - sequences * 12) / 8) {
    throw DataError(
        "{}: byte 18: {} sequences and {} document bounds do not fit its {} bytes (the file is "
        "truncated or its counts are wrong). Copy or tokenize it again",
        path, sequences, bounds, size);
  }
  const std::uint64_t expected = kHeaderBytes + sequences * 12 + bounds * 8;
  if (expected != static_cast<std::uint64_t>(size)) {
    throw DataError(
        "{}: {} surplus bytes after byte {}, where {} sequences and {} document bounds end "
        "(modes of multimodal data are not read). Copy or tokenize it again",
        path, static_cast<std::uint64_t>(size) - expected, expected, sequences, bounds);
  }
  sequences_ = static_cast<std::int64_t>(sequences);
  bounds_ = static_cast<std::int64_t>(bounds);
  lengths_ = data + kHeaderBytes;
  offsets_ = lengths_ + sequences_ * 4;
  document_bounds_ = offsets_ + sequences_ * 8;
}

void IndexedFile::check_sequences() const {
  const auto bin_tokens = static_cast<std::int64_t>(bin_.bytes().size()) / bytes_per_token_;
  std::int64_t token = 0;
  for (std::int64_t i = 0; i < sequences_; ++i) {
    const std::int32_t count = length(i);
    const auto offset = load<std::int64_t>(offsets_, i);
    if (count < 0) throw DataError("{}.idx: sequence {} has the length {}", prefix_, i, count);
    if (offset != token * bytes_per_token_) {
      throw DataError(
          "{}.idx: sequence {} begins at byte {} of the .bin file, where byte {} follows from the "
          "lengths before it (offsets out of order or not those of these lengths)",
          prefix_, i, offset, token * bytes_per_token_);
    }
    if (count > bin_tokens - token) {
      throw DataError(
          "{}.idx: sequence {} ends at byte {}, past the end of {}.bin with its {} bytes (one of "
          "the two is truncated or they do not belong together)",
          prefix_, i, (token + count) * bytes_per_token_, prefix_, bin_.bytes().size());
    }
    token += count;
  }
}

void IndexedFile::check_document_bounds() const {
  if (bounds_ == 0)
    throw DataError("{}.idx: byte 26: no document bounds, at least [0] stands here", prefix_);
  std::int64_t previous = 0;
  for (std::int64_t i = 0; i < bounds_; ++i) {
    const auto bound = load<std::int64_t>(document_bounds_, i);
    const bool right_begin = i > 0 || bound == 0;
    if (!right_begin || bound < previous || bound > sequences_) {
      throw DataError(
          "{}.idx: document {} begins at sequence {} (bounds ascend from 0 to the {} sequences)",
          prefix_, i, bound, sequences_);
    }
    previous = bound;
  }
  if (previous != sequences_) {
    throw DataError("{}.idx: the last document ends at sequence {} of {}", prefix_, previous,
                    sequences_);
  }
}

void IndexedFile::read_facts() {
  const std::string path = prefix_ + ".json";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return;
  const Json json = parse_json(read_file(path, std::size_t{1} << 20), path);
  const auto integer = [&](std::string_view key) -> std::optional<std::int64_t> {
    const Json* value = json.find(key);
    if (value == nullptr || !value->is_integer()) return std::nullopt;
    return value->as_integer();
  };
  const auto documents = integer("documents"), tokens = integer("tokens"),
             largest = integer("largest_id");
  // Any tool may have put its own JSON here: only what counts this very file is taken at its word.
  if (!tokens || !largest || *tokens != tokens_ ||
      documents.value_or(this->documents()) != this->documents()) {
    log_warning("{}: does not describe this .idx file ({} tokens in {} documents) and is left out",
                path, tokens_, this->documents());
    return;
  }
  TokenizedFacts facts;
  facts.documents = this->documents();
  facts.tokens = tokens_;
  facts.largest_id = *largest;
  facts.packed = integer("packed").value_or(0);
  const Json* hash = json.find("tokenizer_hash");
  if (hash != nullptr && hash->is_string()) facts.tokenizer_hash = hash->as_string();
  facts_ = std::move(facts);
}

void IndexedFile::open_mask() {
  const std::string path = prefix_ + ".mask";
  if (!is_there(path)) return;
  mask_.emplace(path);
  const auto bytes = static_cast<std::int64_t>(mask_->bytes().size());
  if (bytes == tokens_) return;
  throw DataError(
      "{}: has {} bytes, and {}.bin {} tokens (a mask has a byte for each). Tokenize again, or "
      "move "
      "the mask away to count all tokens",
      path, bytes, prefix_, tokens_);
}

void IndexedFile::check_mask(std::int64_t first, std::int64_t count) const {
  expect(first >= 0 && count >= 0 && count <= tokens_ - first, "tokens {}+{} of {}", first, count,
         tokens_);
  if (!mask_) return;
  const auto bytes =
      mask_->bytes().subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  auto all = std::byte{0};
  for (const std::byte byte : bytes) all |= byte;
  if (all <= std::byte{1}) return;
  const auto bad =
      std::find_if(bytes.begin(), bytes.end(), [](std::byte byte) { return byte > std::byte{1}; });
  throw DataError(
      "{}.mask: byte {} is {} (1: the token counts as a target, 0: it does not; a mask holds no "
      "other). Tokenize again",
      prefix_, first + (bad - bytes.begin()), static_cast<int>(*bad));
}

void IndexedFile::read_mask(std::int64_t first, std::span<std::uint8_t> counted) const {
  check_mask(first, std::ssize(counted));
  if (mask_) {
    std::memcpy(counted.data(), mask_->bytes().data() + first, counted.size());
  } else {
    std::fill(counted.begin(), counted.end(), std::uint8_t{1});
  }
}

std::int32_t IndexedFile::length(std::int64_t sequence) const {
  return load<std::int32_t>(lengths_, sequence);
}

std::int64_t IndexedFile::first_token(std::int64_t sequence) const {
  return sequence == sequences_ ? tokens_
                                : load<std::int64_t>(offsets_, sequence) / bytes_per_token_;
}

std::int64_t IndexedFile::sequence_of(std::int64_t token) const {
  std::int64_t low = 0, high = sequences_;  // first_token(low) <= token < first_token(high)
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (first_token(middle) <= token ? low : high) = middle;
  }
  return low;
}

void IndexedFile::read(std::int64_t first, std::span<std::int32_t> ids) const {
  const auto count = static_cast<std::int64_t>(ids.size());
  expect(first >= 0 && count <= tokens_ - first, "tokens {}+{} of {}", first, count, tokens_);
  visit_tokens(first, [&]<class T>(const T* tokens) {
    for (std::int64_t i = 0; i < count; ++i) {
      if constexpr (sizeof(T) > sizeof(std::int32_t)) {
        const bool fits = tokens[i] >= 0 && tokens[i] <= std::numeric_limits<std::int32_t>::max();
        ids[i] = fits ? static_cast<std::int32_t>(tokens[i]) : -1;
      } else {
        ids[i] = std::max<std::int32_t>(tokens[i], -1);
      }
    }
  });
}

std::int64_t IndexedFile::id_at(std::int64_t token) const {
  expect(token >= 0 && token < tokens_, "token {} of {}", token, tokens_);
  return visit_tokens(token, [](const auto* tokens) { return static_cast<std::int64_t>(*tokens); });
}

std::optional<std::int64_t> IndexedFile::find_outside(std::int64_t first, std::int64_t count,
                                                      std::int64_t vocab_size) const {
  expect(first >= 0 && count >= 0 && count <= tokens_ - first, "tokens {}+{} of {}", first, count,
         tokens_);
  return visit_tokens(first, [&](const auto* tokens) -> std::optional<std::int64_t> {
    const auto outside = [&](auto id) {
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(id)) >=
             static_cast<std::uint64_t>(vocab_size);
    };
    // Blocks without a branch per token vectorise; then the place within the first bad block.
    constexpr std::int64_t kBlock = 4096;
    for (std::int64_t begin = 0; begin < count; begin += kBlock) {
      const std::int64_t end = std::min(count, begin + kBlock);
      int bad = 0;
      for (std::int64_t i = begin; i < end; ++i) bad |= outside(tokens[i]);
      if (bad == 0) continue;
      for (std::int64_t i = begin; i < end; ++i) {
        if (outside(tokens[i])) return first + i;
      }
    }
    return std::nullopt;
  });
}

std::string IndexedFile::describe(std::int64_t token) const {
  const std::int64_t sequence = sequence_of(token);
  return fmt::format("{}: {} {}, position {}: token id {}", bin_path(),
                     documents() == sequences_ ? "document" : "sequence", sequence,
                     token - first_token(sequence), id_at(token));
}

std::string IndexedFile::index_hash() const { return xxh3_128_hex(index_.bytes()); }

namespace {

void add_sample(std::span<const std::byte> bytes, StreamingHash& hash) {
  constexpr std::size_t kBlocks = 64, kBlockBytes = 4096;
  if (bytes.size() <= kBlocks * kBlockBytes) return hash.update(bytes);
  // The first and the last block are among them.
  const std::size_t room = bytes.size() - kBlockBytes;
  for (std::size_t i = 0; i < kBlocks; ++i)
    hash.update(bytes.subspan(room / (kBlocks - 1) * i + room % (kBlocks - 1) * i / (kBlocks - 1),
                              kBlockBytes));
}

}  // namespace

std::string IndexedFile::sampled_hash() const {
  StreamingHash hash;
  hash.update(index_.bytes());
  add_sample(bin_.bytes(), hash);
  return hash.hex();
}

std::string IndexedFile::mask_hash() const {
  if (!mask_) return "";
  StreamingHash hash;
  add_sample(mask_->bytes(), hash);
  return hash.hex();
}

}  // namespace trireme
