#include "base/units.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/human_format.h"

namespace trireme {
namespace {

TEST(Units, counts_are_powers_of_a_thousand) {
  EXPECT_EQ(parse_count("4k"), 4000);
  EXPECT_EQ(parse_count("4K"), 4000);
  EXPECT_EQ(parse_count("1.5M"), 1'500'000);
  EXPECT_EQ(parse_count("10B"), 10'000'000'000);
  EXPECT_EQ(parse_count("2 T"), 2'000'000'000'000);
  EXPECT_EQ(parse_count("1.001k"), 1001);
}

TEST(Units, a_count_that_is_none_is_nothing) {
  for (const char* text : {"10", "", "k", ".5k", "5.k", "-1k", "1e3k", "1.0005k", "1kk", "1  k",
                           "1GiB", "9999999T", "nank", "0x1k", " 1k", "1k "}) {
    EXPECT_FALSE(parse_count(text)) << text;
  }
}

TEST(Units, sizes_are_powers_of_a_thousand_or_of_1024) {
  EXPECT_EQ(parse_size("2GiB"), std::int64_t{2} << 30);
  EXPECT_EQ(parse_size("1.5 KB"), 1500);
  EXPECT_EQ(parse_size("1TB"), 1'000'000'000'000);
  EXPECT_EQ(parse_size("1TiB"), std::int64_t{1} << 40);
  for (const char* text : {"10", "2G", "2gib", "k", "1B", "9999999TB"}) {
    EXPECT_FALSE(parse_size(text)) << text;
  }
  EXPECT_EQ(parse_bytes("4096", "--memory"), 4096);
  EXPECT_EQ(parse_bytes("80GiB", "--memory"), std::int64_t{80} << 30);
  EXPECT_THROW(parse_bytes("0", "--memory"), ConfigError);
  EXPECT_THROW(parse_bytes("much", "--memory"), ConfigError);
}

TEST(Counted, one_is_singular_and_nouns_have_their_plurals) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(1200, "entry"), "1,200 entries");
  EXPECT_EQ(counted(3, "micro-batch"), "3 micro-batches");
}

}  // namespace
}  // namespace trireme
