#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "parallel/rank_order_channel.h"
#include "parallel/tensor_axis.h"
#include "support/mpi_test.h"

namespace trireme {
namespace {

constexpr std::int64_t kRows = 3, kColumns = 5;  // of a rank

/// What rank `rank` has of every sum; their order shows.
std::vector<float> parts_of(int rank, int ranks) {
  std::vector<float> values(static_cast<std::size_t>(ranks * kRows * kColumns));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto x = static_cast<float>((i * 37 + static_cast<std::size_t>(rank) * 101) % 1009);
    values[i] = rank % 2 == 0 ? 1e6F * x + 0.3F : -1e6F * x + 1e-3F * x;
  }
  return values;
}

class TensorAxisOfRanks : public testing::Test {
 protected:
  [[nodiscard]] TensorView view(std::vector<float>& values) const {
    return view_of(values.data(), {world_.size() * kRows, kColumns});
  }

  Communicator& world_ = test_launch().job();
  Context context_{{}, 1, detect_isa()};
  std::unique_ptr<Communicator> shared_ = world_.channel("shared");
  RankOrderChannel apart_{world_.channel("inner"), context_,
                          4096};  // as if the memory were not shared
};

TEST_F(TensorAxisOfRanks, rows_made_place_by_place_have_the_sums_of_rows_made_at_once) {
  for (Communicator* channel : {shared_.get(), static_cast<Communicator*>(&apart_)}) {
    for (const bool cuts_tokens : {false, true}) {
      const TensorAxis axis(*channel, cuts_tokens);
      const std::vector<float> parts = parts_of(world_.rank(), world_.size());
      std::vector<float> expected = parts, made(parts.size(), -1), scratch(parts.size());
      axis.reduce(view(expected));
      std::vector<std::int64_t> firsts;
      axis.make_reduced(context_, view(made), view(scratch),
                        [&](std::int64_t first, std::int64_t count) {
                          firsts.push_back(first);
                          const auto begin = static_cast<std::size_t>(first * kColumns);
                          std::memcpy(&made[begin], &parts[begin],
                                      static_cast<std::size_t>(count * kColumns) * sizeof(float));
                        });
      const auto rows = axis.residual_range(world_.size() * kRows);
      for (std::int64_t i = rows.first * kColumns; i < (rows.first + rows.count) * kColumns; ++i)
        EXPECT_EQ(made[static_cast<std::size_t>(i)], expected[static_cast<std::size_t>(i)]) << i;
      if (cuts_tokens && channel == &apart_) {
        ASSERT_EQ(std::ssize(firsts), world_.size());
        EXPECT_EQ(firsts.back(), rows.first) << "its own rows come last";
      } else {
        EXPECT_EQ(firsts, std::vector<std::int64_t>{0});
      }
    }
  }
}

TEST_F(TensorAxisOfRanks, rows_that_come_are_used_once_and_its_own_before_they_have_come) {
  const TensorAxis axis(*shared_, true);
  const int ranks = world_.size(), here = world_.rank();
  std::vector<float> x(static_cast<std::size_t>(ranks * kRows * kColumns), -1);
  const auto own = axis.residual_range(ranks * kRows);
  for (std::int64_t i = own.first * kColumns; i < (own.first + own.count) * kColumns; ++i)
    x[static_cast<std::size_t>(i)] = static_cast<float>(here);
  std::vector<int> used(static_cast<std::size_t>(ranks * kRows));
  bool first_use = true;
  axis.use_gathered(
      view(x), axis.start_all_gather(view(x)), [&](std::int64_t first, std::int64_t count) {
        EXPECT_TRUE(!first_use || first == own.first);
        first_use = false;
        for (std::int64_t row = first; row < first + count; ++row) {
          ++used[static_cast<std::size_t>(row)];
          EXPECT_EQ(x[static_cast<std::size_t>(row * kColumns)], static_cast<float>(row / kRows));
        }
      });
  EXPECT_EQ(used, std::vector<int>(used.size(), 1));
}

}  // namespace
}  // namespace trireme
