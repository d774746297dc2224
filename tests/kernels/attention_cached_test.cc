// Attention over a cache in pages beside the reference over keys in a row.

#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/attention_support.h"

namespace trireme {
namespace {

using namespace attention_testing;

class AttentionCached : public OpTest {};
TRIREME_FOR_ALL_ISAS(AttentionCached);

/// Queries at the ends of sequences of these lengths, whose keys lie in pages in any order.
struct CachedProblem {
  struct Row {
    std::int64_t sequence, position;
  };

  CachedProblem(DType of_type, Sizes sizes, const std::vector<std::int64_t>& lengths,
                std::uint64_t seed)
      : c(sizes), type(of_type) {
    std::int64_t pages_each = 0, pages = 0;
    for (const std::int64_t length : lengths) {
      const std::int64_t count = (length + kAttentionPage - 1) / kAttentionPage;
      pages_each = std::max(pages_each, count);
      pages += count;
    }
    std::vector<std::int32_t> order(static_cast<std::size_t>(pages) + 2);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    table = TestTensor(DType::kI32, {std::ssize(lengths), pages_each});
    auto next = order.begin();
    for (std::int64_t s = 0; s < std::ssize(lengths); ++s) {
      const std::int64_t length = lengths[static_cast<std::size_t>(s)];
      for (std::int64_t page = 0; page * kAttentionPage < length; ++page)
        table.set(s * pages_each + page, *next++);
      keys.push_back(
          TestTensor::random(type, {length, width()}, 100 + static_cast<std::uint64_t>(s)));
      values.push_back(
          TestTensor::random(type, {length, value_width()}, 200 + static_cast<std::uint64_t>(s)));
      longest = std::max(longest, length);
    }
    k = TestTensor(type, {std::ssize(order) * kAttentionPage, width()});
    v = TestTensor(type, {std::ssize(order) * kAttentionPage, value_width()});
    for (std::int64_t s = 0; s < std::ssize(lengths); ++s) {
      const auto copy = [&](const TestTensor& from, TestTensor& to) {
        const std::vector<double> all = from.values();
        const std::int64_t columns = from.shape()[1];
        for (std::int64_t i = 0; i < std::ssize(all); ++i)
          to.set(row_of(s, i / columns) * columns + i % columns, all[static_cast<std::size_t>(i)]);
      };
      copy(keys[static_cast<std::size_t>(s)], k);
      copy(values[static_cast<std::size_t>(s)], v);
    }
  }

  [[nodiscard]] std::int64_t width() const { return c.kv_heads * c.head_dim; }
  [[nodiscard]] std::int64_t value_width() const { return c.kv_heads * c.value_dim(); }
  [[nodiscard]] std::int64_t row_of(std::int64_t s, std::int64_t position) const {
    const auto page = static_cast<std::int64_t>(
        table.values()[static_cast<std::size_t>(s * table.shape()[1] + position / kAttentionPage)]);
    return page * kAttentionPage + position % kAttentionPage;
  }
  /// One row of queries for each, the same numbers for the same (sequence, position).
  [[nodiscard]] TestTensor queries(const std::vector<Row>& rows) const {
    TestTensor q(type, {std::ssize(rows), c.heads * c.head_dim + 3});
    for (std::int64_t t = 0; t < std::ssize(rows); ++t) {
      const Row& row = rows[static_cast<std::size_t>(t)];
      const TestTensor one =
          TestTensor::random(type, {1, c.heads * c.head_dim},
                             static_cast<std::uint64_t>(row.sequence * 1000 + row.position));
      const std::vector<double> numbers = one.values();
      for (std::int64_t i = 0; i < std::ssize(numbers); ++i)
        q.set(t * q.shape()[1] + 3 + i, numbers[static_cast<std::size_t>(i)]);
    }
    return q;
  }
  /// `lse` [rows, heads]: may be left out.
  [[nodiscard]] TestTensor run(Isa isa, int threads, const std::vector<Row>& rows,
                               TensorView lse = {}) const {
    Context context = test_context(isa, threads);
    const auto count = std::ssize(rows);
    const TestTensor q = queries(rows);
    TestTensor o(type, {count, c.heads * c.value_dim()}), sequence(DType::kI32, {count}),
        position(DType::kI32, {count});
    for (std::int64_t t = 0; t < count; ++t) {
      sequence.set(t, static_cast<double>(rows[static_cast<std::size_t>(t)].sequence));
      position.set(t, static_cast<double>(rows[static_cast<std::size_t>(t)].position));
    }
    attention_cached(context, {heads_of(o.view(), 0, c.heads, c.value_dim()),
                               heads_of(q.view(), 3, c.heads, c.head_dim),
                               heads_of(k.view(), 0, c.kv_heads, c.head_dim),
                               heads_of((latents ? k : v).view(), 0, c.kv_heads, c.value_dim()),
                               table, sequence, position, longest, 0.3F, window, lse});
    context.synchronize();
    return o;
  }
  [[nodiscard]] reference::AttentionOutput expected(const Row& row) const {
    reference::AttentionCase one;
    one.heads = c.heads;
    one.kv_heads = c.kv_heads;
    one.head_dim = c.head_dim;
    one.value_dim = c.value_dim();
    one.q_ranges = {{row.position, 1}};
    one.kv_ranges = {{0, row.position + 1}};
    one.scale = static_cast<double>(0.3F);
    one.window = window;
    const std::vector<double> q = queries({row}).values();
    one.q.assign(q.begin() + 3, q.end());
    const auto seen = [&](const TestTensor& all, std::int64_t columns) {
      const std::vector<double> numbers = all.values();
      std::vector<double> rows;
      for (std::int64_t i = 0; i < (row.position + 1) * columns; ++i)
        rows.push_back(
            numbers[static_cast<std::size_t>(i / columns * all.shape()[1] + i % columns)]);
      return rows;
    };
    one.k = seen(keys[static_cast<std::size_t>(row.sequence)], width());
    one.v = seen((latents ? keys : values)[static_cast<std::size_t>(row.sequence)], value_width());
    return reference::attention_forward(one);
  }

  Sizes c;
  DType type;
  TestTensor table{DType::kI32, {1, 1}}, k{DType::kF32, {1, 1}}, v{DType::kF32, {1, 1}};
  std::vector<TestTensor> keys, values;  // of each sequence, in order
  std::int64_t longest = 0, window = 0;
  bool latents = false;  ///< keys, or their first dims, are the values too
};

const std::vector<CachedProblem::Row> kRows = {{0, 0},  {2, 199}, {1, 63},  {3, 129},
                                               {1, 64}, {0, 4},   {2, 198}, {3, 127}};

void expect_reference(CachedProblem& problem, Isa isa,
                      const std::vector<CachedProblem::Row>& rows) {
  TestTensor lse(DType::kF32, {std::ssize(rows), problem.c.heads});
  const TestTensor o = problem.run(isa, 2, rows, lse);
  EXPECT_EQ(problem.run(isa, 2, rows).bits(), o.bits());
  const std::vector<double> found = o.values(), sums = lse.values();
  const std::size_t width = found.size() / rows.size();
  for (std::size_t t = 0; t < rows.size(); ++t) {
    const auto expected = problem.expected(rows[t]);
    const auto begin = sums.begin() + static_cast<std::ptrdiff_t>(t) * problem.c.heads;
    expect_close({begin, begin + problem.c.heads}, expected.lse, {4e-6, 4e-6}, "lse");
    expect_close(
        {found.begin() + static_cast<std::ptrdiff_t>(t * width),
         found.begin() + static_cast<std::ptrdiff_t>((t + 1) * width)},
        expected.o, problem.type == DType::kF32 ? Tolerance{4e-6, 4e-6} : Tolerance{4e-3, 1e-4},
        fmt::format("row {}, head size {}, window {}", t, problem.c.head_dim, problem.window));
  }
}

TEST_P(AttentionCached, equals_the_reference) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const Sizes& sizes :
         {Sizes{1, 4, 2, 16}, {1, 3, 1, 10}, {1, 2, 2, 136}, {1, 4, 2, 24, 10}}) {
      CachedProblem problem(type, sizes, {5, 70, 200, 130}, 3);
      for (const std::int64_t window : {0, 1, 64, 100}) {
        problem.window = window;
        expect_reference(problem, GetParam(), kRows);
      }
    }
  }
}

TEST_P(AttentionCached, rows_of_latents_are_keys_and_values_of_all_heads) {
  const std::vector<CachedProblem::Row> rows = {{0, 0}, {1, 69}, {1, 64}, {2, 139}, {0, 4}};
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const auto& [head_dim, value_dim] :
         {std::pair<std::int64_t, std::int64_t>{256, 256}, {258, 258}, {576, 512}, {1024, 1024}}) {
      CachedProblem problem(type, {1, 3, 1, head_dim, value_dim}, {5, 70, 140}, 3);
      problem.latents = true;
      for (const std::int64_t window : {0, 100}) {
        problem.window = window;
        expect_reference(problem, GetParam(), rows);
      }
      const std::string all = problem.run(GetParam(), 3, rows).bits();
      const std::size_t width = all.size() / rows.size();
      EXPECT_EQ(problem.run(GetParam(), 1, {rows[3]}).bits(), all.substr(3 * width, width));
    }
  }
}

TEST_P(AttentionCached, a_row_has_the_bits_that_it_has_alone_and_on_other_pages) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    CachedProblem problem(type, {1, 4, 2, 20}, {5, 70, 200, 130}, 3),
        elsewhere(type, {1, 4, 2, 20}, {5, 70, 200, 130}, 4);
    problem.window = elsewhere.window = type == DType::kF32 ? 0 : 90;
    const std::string all = problem.run(GetParam(), 1, kRows).bits();
    EXPECT_EQ(problem.run(GetParam(), 3, kRows).bits(), all);
    EXPECT_EQ(elsewhere.run(GetParam(), 2, kRows).bits(), all);
    const std::size_t width = all.size() / kRows.size();
    for (std::size_t t = 0; t < kRows.size(); ++t)
      EXPECT_EQ(problem.run(GetParam(), 2, {kRows[t]}).bits(), all.substr(t * width, width)) << t;
  }
}

TEST_P(AttentionCached, refuses_sizes_that_disagree) {
  const TestTensor q = TestTensor::random(DType::kF32, {2, 8}, 1);
  TestTensor o(DType::kF32, {2, 8});
  const TestTensor cache(DType::kF32, {64, 4}), table(DType::kI32, {1, 1}), two(DType::kI32, {2}),
      three(DType::kI32, {3});
  const auto run = [&](const TestTensor& sequence, std::int64_t longest, std::int64_t kv_dim) {
    Context context = test_context(GetParam());
    attention_cached(
        context, {heads_of(o.view(), 0, 2, 4), heads_of(q.view(), 0, 2, 4),
                  heads_of(cache.view(), 0, 1, kv_dim), heads_of(cache.view(), 0, 1, kv_dim), table,
                  sequence, two, longest});
  };
  EXPECT_NO_THROW(run(two, 64, 4));
  expect_refused([&] { run(three, 64, 4); }, "sequence");
  expect_refused([&] { run(two, 65, 4); }, "longest");
  expect_refused([&] { run(two, 64, 2); }, "k");
  const TestTensor wide = TestTensor::random(DType::kF32, {2, 1026}, 1);
  TestTensor wide_o(DType::kF32, {2, 1026});
  const auto one_head = [](auto& x) { return heads_of(x.view(), 0, 1, 1026); };
  Context context = test_context(GetParam());
  expect_refused(
      [&] {
        attention_cached(context, {one_head(wide_o), one_head(wide), one_head(wide), one_head(wide),
                                   table, two, two, 64});
      },
      "attention_cached.q: the head size must be even and from 2 to 1024");
}

}  // namespace
}  // namespace trireme
