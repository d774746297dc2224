#include "store/row_gradient.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/embedding/embedding.h"
#include "support/thread_ranks.h"

namespace trireme {
namespace {

constexpr std::int64_t kRows = 40, kColumns = 5, kMost = 9;

/// Ids that repeat, and a gradient for each.
struct Tokens {
  Buffer ids, dout;
  Tokens(std::vector<std::int32_t> values, int seed)
      : ids(DType::kI32, {std::ssize(values)}), dout(DType::kF32, {std::ssize(values), kColumns}) {
    std::copy(values.begin(), values.end(), ids.view().as<std::int32_t>());
    for (std::int64_t i = 0; i < dout.view().count(); ++i)
      dout.view().as<float>()[i] = static_cast<float>((i + seed) * 37 % 101 - 50) / 7;
  }
};

/// All rows of the gradient.
std::vector<float> whole(const RowGradient& gradient) {
  std::vector<float> all;
  for (std::int64_t r = 0; r < gradient.slots().count(); ++r) {
    const auto* row =
        gradient.table().as<float>() + gradient.slots().as<std::int32_t>()[r] * kColumns;
    all.insert(all.end(), row, row + kColumns);
  }
  return all;
}

std::vector<float> expected(Context& context, std::initializer_list<const Tokens*> calls,
                            std::int64_t first_row = 0, std::int64_t vocabulary = kRows) {
  const Buffer table(DType::kF32, {kRows, kColumns});
  for (const Tokens* call : calls) {
    embedding_backward(context, table.view(), call->ids.view(), call->dout.view(), first_row,
                       vocabulary);
  }
  const auto* values = table.view().as<float>();
  return {values, values + table.view().count()};
}

TEST(RowGradient, has_the_bits_of_the_whole) {
  Context context({}, 2, detect_isa());
  const Tokens first({3, 39, 3, 0}, 1), second({39, 7, 7, 0, 7}, 2);
  RowGradient gradient(kRows, kColumns, kMost);
  gradient.add(context, first.ids.view(), first.dout.view(), 0, kRows);
  gradient.add(context, second.ids.view(), second.dout.view(), 0, kRows);
  EXPECT_EQ(whole(gradient), expected(context, {&first, &second}));
  EXPECT_EQ(gradient.count(), 4);
  const auto* indices = gradient.indices().as<std::int32_t>();
  EXPECT_EQ(std::vector<std::int32_t>(indices, indices + 4),
            (std::vector<std::int32_t>{3, 39, 0, 7}));
  EXPECT_EQ(gradient.looked_up().data, gradient.table().data);
}

TEST(RowGradient, a_step_forgets_the_one_before) {
  Context context({}, 1, detect_isa());
  const Tokens first({3, 39, 3, 0}, 1), second({5, 39}, 2);
  RowGradient gradient(kRows, kColumns, kMost);
  EXPECT_EQ(whole(gradient), std::vector<float>(kRows * kColumns, 0.0F));
  gradient.add(context, first.ids.view(), first.dout.view(), 0, kRows);
  gradient.clear(context);
  EXPECT_EQ(gradient.count(), 0);
  EXPECT_EQ(whole(gradient), std::vector<float>(kRows * kColumns, 0.0F));
  gradient.add(context, second.ids.view(), second.dout.view(), 0, kRows);
  EXPECT_EQ(whole(gradient), expected(context, {&second}));
}

TEST(RowGradient, ids_of_other_parts_of_the_vocabulary_add_nothing) {
  Context context({}, 1, detect_isa());
  const Tokens tokens({99, 100, 139, 140, 0, 100}, 1);
  RowGradient gradient(kRows, kColumns, kMost);
  gradient.add(context, tokens.ids.view(), tokens.dout.view(), 100, 200);
  EXPECT_EQ(gradient.count(), 2);
  EXPECT_EQ(whole(gradient), expected(context, {&tokens}, 100, 200));
}

TEST(RowGradient, refuses_more_rows_than_it_has_and_ids_beyond_the_vocabulary) {
  Context context({}, 1, detect_isa());
  RowGradient gradient(kRows, kColumns, 3);
  const Tokens two({1, 2}, 0), others({3, 4}, 0), beyond({kRows}, 0), many({1, 1, 1, 1}, 0);
  EXPECT_THROW(gradient.add(context, beyond.ids.view(), beyond.dout.view(), 0, kRows),
               InternalError);
  EXPECT_THROW(gradient.add(context, many.ids.view(), many.dout.view(), 0, kRows), InternalError);
  gradient.add(context, two.ids.view(), two.dout.view(), 0, kRows);
  EXPECT_THROW(gradient.add(context, others.ids.view(), others.dout.view(), 0, kRows),
               InternalError);
}

/// Rows that one rank has looked up, several, all or none; ranks whose tree has lone neighbours.
TEST(RowSum, has_the_bits_of_the_all_reduce_of_the_whole) {
  for (const int ranks : {2, 3, 4, 5, 7, 8}) {
    on_threads(ranks, [&](Communicator& channel) {
      Context context({}, 1, detect_isa());
      const std::int64_t each = 6;
      RowGradient gradient(kRows, kColumns, each * ranks);
      RowSum sum(context, gradient, channel);
      for (int step = 0; step < 2; ++step) {  // the second has nothing of the first
        SCOPED_TRACE(fmt::format("rank {} of {}, step {}", channel.rank(), ranks, step));
        std::vector<std::int32_t> ids{17, 17};
        for (std::int32_t i = 0; i < 4 - channel.rank() % 2; ++i)
          ids.push_back((channel.rank() * (i + step) * 3 + i) % 11);
        const Tokens tokens(ids, 100 * channel.rank() + step);
        gradient.clear(context);
        gradient.add(context, tokens.ids.view(), tokens.dout.view(), 0, kRows);
        const Buffer all(DType::kF32, {kRows, kColumns});
        const std::vector<float> mine = whole(gradient);
        std::copy(mine.begin(), mine.end(), all.view().as<float>());
        sum.start();
        sum.finish();
        channel.start_all_reduce(all.view()).wait();
        const auto* values = all.view().as<float>();
        EXPECT_EQ(whole(gradient), std::vector<float>(values, values + kRows * kColumns));
      }
    });
  }
}

TEST(RowSum, sends_what_the_tokens_of_a_rank_may_look_up) {
  EXPECT_EQ(RowSum::buffer_bytes(kRows, kColumns, 12, 1), 0);
  EXPECT_EQ(RowSum::buffer_bytes(kRows, kColumns, 12, 3), 4 * (2 * 12 + 12 * kColumns + kRows));
  EXPECT_EQ(RowSum::bytes_sent(kColumns, 12, 1), 0);
  EXPECT_EQ(RowSum::bytes_sent(kColumns, 12, 3), 2 * 4 * (4 + 4 * kColumns));
}

}  // namespace
}  // namespace trireme
