#include "tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <array>

#include "base/utf8.h"

namespace trireme {

struct BpeTokenizer::Scratch {
  Normalizer::Scratch normalizer;
  PreTokenizer::Scratch pre_tokenizer;
  BpeModel::Scratch model;
  std::vector<AddedTokenFinder::Piece> raw_pieces, normalized_pieces;
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
  for (const AddedTokenFinder::Piece& piece : scratch.raw_pieces) {
    if (piece.id >= 0) {
      ids.push_back(piece.id);
      before = Before::kToken;
      continue;
    }
    const std::string_view normal = normalizer_.apply(piece.text, before, scratch.normalizer);
    scratch.normalized_pieces.clear();
    normalized_finder_.split(normal, scratch.normalized_pieces);
    for (const AddedTokenFinder::Piece& part : scratch.normalized_pieces) {
      if (part.id >= 0) {
        ids.push_back(part.id);
      } else {
        encode_between_tokens(part.text, before, scratch, ids);
      }
      before = Before::kToken;
    }
  }
}

void BpeTokenizer::encode_between_tokens(std::string_view text, Before before, Scratch& scratch,
                                         std::vector<std::int32_t>& ids) const {
  const std::string_view cut = pre_tokenizer_.split(text, before, scratch.pre_tokenizer);
  for (const PreTokenizer::Range& range : scratch.pre_tokenizer.ranges) {
    model_.encode(cut.substr(range.begin, range.end - range.begin), scratch.model, ids);
  }
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
