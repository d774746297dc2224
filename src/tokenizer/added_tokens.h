#pragma once
// Tokens found in the text before anything else: special tokens and those a user added.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool special = false;
  bool single_word = false;                        ///< only where no word character touches it
  bool strips_left = false, strips_right = false;  ///< takes the white space on that side with it
  bool normalized = false;                         ///< looked for after normalization
};

/// Finds leftmost-longest occurrences, as Hugging Face `tokenizers` does.
class AddedTokenFinder {
 public:
  struct Piece {
    std::string_view text;
    std::int32_t id;  ///< of a token; -1 for the text between tokens
  };

  AddedTokenFinder() = default;
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);
  [[nodiscard]] bool empty() const noexcept { return tokens_.empty(); }
  /// Appends the pieces of `text` (UTF-8) in order.
  void split(std::string_view text, std::vector<Piece>& pieces) const;

 private:
  struct Node {
    std::int32_t token = -1;
    std::vector<std::pair<unsigned char, std::int32_t>> next;
  };
  [[nodiscard]] const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::vector<bool> first_bytes_ = std::vector<bool>(256);
};

}  // namespace trireme
