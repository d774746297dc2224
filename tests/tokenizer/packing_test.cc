#include "tokenizer/packing.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/golden.h"

namespace trireme {
namespace {

TEST(Packing, bins_are_those_of_trl) {
  const Json golden = read_golden_json("chat/packing.json");
  ASSERT_GE(golden.as_array().size(), 6u);
  for (const Json& one : golden.as_array()) {
    const std::vector<std::int64_t> wide = flat_integers(*one.find("lengths"));
    const std::vector<std::int32_t> lengths(wide.begin(), wide.end());
    const auto capacity = static_cast<std::int32_t>(one.find("capacity")->as_integer());
    std::vector<std::vector<std::int64_t>> wanted;
    for (const Json& bin : one.find("bins")->as_array()) wanted.push_back(flat_integers(bin));
    EXPECT_EQ(pack_best_fit(lengths, capacity), wanted) << lengths.size() << " of " << capacity;
  }
}

TEST(Packing, the_fullest_bin_takes_it_and_of_equal_ones_the_first) {
  using Bins = std::vector<std::vector<std::int64_t>>;
  const std::vector<std::int32_t> lengths = {2, 5, 7, 7, 3, 1};
  EXPECT_EQ(pack_best_fit(lengths, 10), (Bins{{2, 4}, {3, 0, 5}, {1}}));
  const std::vector<std::int32_t> too_long = {3, 11};
  EXPECT_THROW((void)pack_best_fit(too_long, 10), InternalError);
}

}  // namespace
}  // namespace trireme
