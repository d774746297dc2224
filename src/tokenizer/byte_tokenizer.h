#pragma once

#include "tokenizer/tokenizer.h"

namespace trireme {

/// Ids 0 to 255 are the bytes, 256 ends a document; its name, <|endoftext|>, is plain text.
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr std::int32_t kEndToken = 256;

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  [[nodiscard]] std::vector<std::size_t> encode_and_find(
      std::string_view text, std::span<const std::size_t> places,
      std::vector<std::int32_t>& ids) const override;
  [[nodiscard]] std::string_view token_text(std::int32_t id) const override;
  [[nodiscard]] bool is_special(std::int32_t id) const override { return id == kEndToken; }
  [[nodiscard]] std::optional<std::int32_t> token_id(std::string_view name) const override;
  [[nodiscard]] std::int32_t vocab_size() const override { return kEndToken + 1; }
  [[nodiscard]] std::optional<std::int32_t> end_token() const override { return kEndToken; }
  [[nodiscard]] const std::string& hash() const override { return name_; }
  [[nodiscard]] const std::string& file_hash() const override { return name_; }
  [[nodiscard]] const std::string& source() const override { return name_; }
  [[nodiscard]] std::size_t split_position(std::string_view text, std::size_t from) const override;

 private:
  std::string name_ = "byte";
};

}  // namespace trireme
