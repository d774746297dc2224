#pragma once
// Tokens back to text where they are not byte-level: the decoders of SentencePiece's forms.

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace trireme {

/// Hugging Face's decoders in order, each from a list of tokens to a list of tokens; what the last
/// leaves is joined. Without any, tokens are joined by blanks, as there. One difference: bytes that
/// are no UTF-8 stay bytes, where the peer writes U+FFFD for each.
class TokenDecoder {
 public:
  /// In each token every `literal` becomes `content`.
  void add_replacement(std::string literal, std::string content) {
    steps_.emplace_back(Replace{std::move(literal), std::move(content)});
  }
  /// "<0x0A>" becomes that byte.
  void add_byte_fallback() { steps_.emplace_back(ByteFallback{}); }
  /// All tokens become one.
  void add_fuse() { steps_.emplace_back(Fuse{}); }
  /// Of each token up to `start` of `content` at its begin and up to `stop` at its end.
  void add_strip(std::string content, std::size_t start, std::size_t stop) {
    steps_.emplace_back(Strip{std::move(content), start, stop});
  }
  /// `mark` becomes a blank; of the first token it goes where `drops_first`.
  void add_metaspace(std::string mark, bool drops_first) {
    steps_.emplace_back(Metaspace{std::move(mark), drops_first});
  }

  /// How many bytes one byte may become.
  [[nodiscard]] double growth() const;
  [[nodiscard]] std::string decode(std::vector<std::string> tokens) const;
  /// Of one token among others: what depends on where it stands is left out.
  [[nodiscard]] std::string text_of(std::string token) const;

 private:
  struct Replace {
    std::string literal, content;
  };
  struct ByteFallback {};
  struct Fuse {};
  struct Strip {
    std::string content;
    std::size_t start, stop;
  };
  struct Metaspace {
    std::string mark;
    bool drops_first;
  };
  std::vector<std::variant<Replace, ByteFallback, Fuse, Strip, Metaspace>> steps_;
};

/// "<0x0A>": how a byte is written as a token.
std::string byte_token(unsigned char byte);

}  // namespace trireme
