#include "tokenizer/byte_tokenizer.h"

#include <array>

namespace trireme {

namespace {
constexpr std::string_view kEndName = "<|endoftext|>";

constexpr std::array<char, 256> kBytes = [] {
  std::array<char, 256> bytes{};
  for (int i = 0; i < 256; ++i) bytes[static_cast<std::size_t>(i)] = static_cast<char>(i);
  return bytes;
}();
}  // namespace

void ByteTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  const std::size_t before = ids.size();
  ids.resize(before + text.size());
  for (std::size_t i = 0; i < text.size(); ++i)
    ids[before + i] = static_cast<unsigned char>(text[i]);
}

std::vector<std::size_t> ByteTokenizer::encode_and_find(std::string_view text,
                                                        std::span<const std::size_t> places,
                                                        std::vector<std::int32_t>& ids) const {
  std::vector<std::size_t> tokens(places.begin(), places.end());
  for (std::size_t& token : tokens) token += ids.size();
  encode(text, ids);
  return tokens;
}

std::string_view ByteTokenizer::token_text(std::int32_t id) const {
  if (id == kEndToken) return kEndName;
  if (id < 0 || id > kEndToken) return {};
  return {&kBytes[static_cast<std::size_t>(id)], 1};
}

std::optional<std::int32_t> ByteTokenizer::token_id(std::string_view name) const {
  if (name == kEndName) return kEndToken;
  if (name.size() == 1) return static_cast<unsigned char>(name[0]);
  return std::nullopt;
}

std::size_t ByteTokenizer::split_position(std::string_view text, std::size_t from) const {
  return from + 1 < text.size() ? from + 1 : std::string_view::npos;
}

}  // namespace trireme
