#include "tokenizer/bpe_tokenizer.h"

#include <array>

#include "base/utf8.h"
#include "tokenizer/unicode.h"

namespace trireme {

struct BpeTokenizer::Scratch {
  PreTokenizer::Scratch pre_tokenizer;
  BpeModel::Scratch model;
  std::vector<AddedTokenFinder::Piece> raw_pieces, normalized_pieces;
  std::string normalized;
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
std::vector<AddedToken> select(const std::vector<AddedToken>& tokens, Normalization normalization,
                               bool normalized) {
  std::vector<AddedToken> chosen;
  for (const AddedToken& token : tokens) {
    if (token.normalized != normalized) continue;
    chosen.push_back(token);
    std::string other;
    if (normalized && normalization == Normalization::kNfc && normalize_nfc(token.content, other)) {
      chosen.back().content = other;
    }
  }
  return chosen;
}
}  // namespace

BpeTokenizer::BpeTokenizer(BpeParts parts)
    : path_(std::move(parts.path)),
      hash_(std::move(parts.hash)),
      normalization_(parts.normalization),
      pre_tokenizer_(std::move(parts.pre_tokenizer)),
      raw_finder_(select(parts.added_tokens, normalization_, false)),
      normalized_finder_(select(parts.added_tokens, normalization_, true)),
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
}

BpeTokenizer::~BpeTokenizer() = default;

void BpeTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  const Lease lease(*this);
  Scratch& scratch = *lease;
  while (!text.empty()) {
    const std::size_t valid = utf8_valid_prefix(text);
    encode_valid(text.substr(0, valid), scratch, ids);
    text.remove_prefix(valid);
    if (text.empty()) return;
    model_.encode(text.substr(0, 1), scratch.model, ids);
    text.remove_prefix(1);
  }
}

void BpeTokenizer::encode_valid(std::string_view text, Scratch& scratch,
                                std::vector<std::int32_t>& ids) const {
  scratch.raw_pieces.clear();
  raw_finder_.split(text, scratch.raw_pieces);
  for (const AddedTokenFinder::Piece& piece : scratch.raw_pieces) {
    if (piece.id >= 0) {
      ids.push_back(piece.id);
      continue;
    }
    std::string_view normal = piece.text;
    if (normalization_ == Normalization::kNfc && normalize_nfc(piece.text, scratch.normalized)) {
      normal = scratch.normalized;
    }
    scratch.normalized_pieces.clear();
    normalized_finder_.split(normal, scratch.normalized_pieces);
    for (const AddedTokenFinder::Piece& part : scratch.normalized_pieces) {
      if (part.id >= 0) {
        ids.push_back(part.id);
      } else {
        encode_between_tokens(part.text, scratch, ids);
      }
    }
  }
}

void BpeTokenizer::encode_between_tokens(std::string_view text, Scratch& scratch,
                                         std::vector<std::int32_t>& ids) const {
  const std::string_view cut = pre_tokenizer_.split(text, scratch.pre_tokenizer);
  for (const PreTokenizer::Range& range : scratch.pre_tokenizer.ranges) {
    model_.encode(cut.substr(range.begin, range.end - range.begin), scratch.model, ids);
  }
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

std::optional<std::int32_t> BpeTokenizer::end_token() const {
  constexpr std::array<std::string_view, 8> kNames = {
      "<|endoftext|>", "<|end_of_text|>", "</s>",  "<eos>",
      "<|eos|>",       "[EOS]",           "<EOS>", "<｜end▁of▁sentence｜>"};
  for (const std::string_view name : kNames) {
    if (const auto id = token_id(name)) return id;
  }
  return std::nullopt;
}

std::size_t BpeTokenizer::split_position(std::string_view text, std::size_t from) const {
  return tokens_stay_in_lines_ ? pre_tokenizer_.split_position(text, from) : std::string_view::npos;
}

}  // namespace trireme
