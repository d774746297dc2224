#include "base/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace trireme {
namespace {

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 7 + size) % 256);
  return bytes;
}

struct Answer {
  std::size_t size;
  const char* hex;
};

// Printed by `xxhsum -H2` 0.8.1 for `pattern(size)`: every code path of XXH3 by length.
constexpr Answer kAnswers[] = {
    {1, "51025a4491835505e12ef9d2eb86ceeb"},    {3, "ce31763cbf8245a5a9088dda485b481c"},
    {4, "dd40da4fb215e2141c39dbb553a705e0"},    {16, "e8920f24c46d190e93e2125b8d5e83bd"},
    {17, "87a3d4506bedd5649f166f98e8c7d6d8"},   {128, "6366d7603fd45b4ae5ba6e4129933089"},
    {129, "29ff8922f1223360efe75d0059e9e2d3"},  {240, "162f94b689da4e16fd17fecfdb5c1b45"},
    {241, "83e91254d35bcf72bd7d29b6ba966d6a"},  {1024, "8bbb9f7af37f2f52dc5acf0b043c445b"},
    {1025, "f66a602aa3eda73bc856c953bbdbc807"}, {5000, "cad9d92cd2479a93308f149a673a1625"},
};

TEST(Hash, equals_what_xxhsum_prints) {
  EXPECT_EQ(xxh3_128_hex(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(xxh3_128_hex("abc"), "06b05ab6733a618578af5f94892f3950");
  for (const auto& [size, hex] : kAnswers) EXPECT_EQ(xxh3_128_hex(pattern(size)), hex) << size;
}

TEST(Hash, pieces_give_the_hash_of_the_whole) {
  for (const auto& [size, hex] : kAnswers) {
    const auto bytes = pattern(size);
    for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{256}, size}) {
      StreamingHash hash;
      for (std::size_t at = 0; at < size; at += piece) {
        hash.update(std::span(bytes).subspan(at, std::min(piece, size - at)));
      }
      EXPECT_EQ(hash.hex(), hex) << size << " in pieces of " << piece;
    }
  }
  EXPECT_EQ(StreamingHash().hex(), xxh3_128_hex(""));
}

}  // namespace
}  // namespace trireme
