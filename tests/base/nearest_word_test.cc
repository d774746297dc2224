#include "base/nearest_word.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(NearestWord, knows_slips_and_leaves_the_rest_alone) {
  EXPECT_EQ(nearest_word("mirco", {"global", "micro"}), "micro");
  EXPECT_EQ(nearest_word("Warmup-Steps", {"warmup_steps", "decay_steps"}), "warmup_steps");
  EXPECT_EQ(nearest_word("zzzz", {"global", "micro"}), std::nullopt);
  EXPECT_EQ(nearest_word("", {"global"}), std::nullopt);
}

}  // namespace
}  // namespace trireme
