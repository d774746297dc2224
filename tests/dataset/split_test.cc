#include "dataset/split.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme {
namespace {

using Parts = std::array<SequenceRange, 3>;

TEST(Split, cuts_documents_by_the_numbers_shares) {
  EXPECT_EQ(split_sequences("969,30,1", 1000), (Parts{{{0, 969}, {969, 999}, {999, 1000}}}));
  EXPECT_EQ(split_sequences("80,15,5", 61), (Parts{{{0, 49}, {49, 58}, {58, 61}}}));
  EXPECT_EQ(split_sequences("9, 1", 20), (Parts{{{0, 18}, {18, 20}, {}}}));
  EXPECT_EQ(split_sequences("1", 7), (Parts{{{0, 7}, {}, {}}}));
}

TEST(Split, rounds_halves_to_even) {
  EXPECT_EQ(split_sequences("1,1", 61)[0], (SequenceRange{0, 30}));  // 30.5
  EXPECT_EQ(split_sequences("1,1", 63)[0], (SequenceRange{0, 32}));  // 31.5
  EXPECT_EQ(split_sequences("1,1", 1)[1], (SequenceRange{0, 1}));    // 0.5
}

TEST(Split, a_share_of_nothing_is_empty) {
  EXPECT_EQ(split_sequences("1,0,1", 10), (Parts{{{0, 5}, {}, {5, 10}}}));
}

TEST(Split, refuses_what_is_no_split) {
  for (const char* text : {"", "a", "0,0,0", "1,2,3,4", "1.2.3", "."}) {
    EXPECT_THROW(split_sequences(text, 10), ConfigError) << text;
  }
}

}  // namespace
}  // namespace trireme
