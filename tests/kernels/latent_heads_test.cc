#include "kernels/latent_heads/latent_heads.h"

#include <array>
#include <numeric>
#include <string>
#include <utility>

#include "kernels/latent_heads_reference.h"
#include "kernels/support/op_test.h"
#include "kernels/support/rotation.h"

namespace trireme {
namespace {

class LatentHeads : public OpTest {};
TRIREME_FOR_ALL_ISAS(LatentHeads);

enum class Rotation { kInterleaved, kHalves, kNone };

struct Sizes {
  std::int64_t tokens, heads, nope, rope, value, head_dim, latent;
};
constexpr Sizes kSmall[] = {
    {7, 3, 2, 2, 4, 4, 5},       {1, 1, 0, 8, 10, 11, 12},      {65, 3, 6, 8, 4, 19, 9},
    {7, 1, 6, 0, 10, 10, 24},    {7, 3, 16, 2, 10, 18, 33},     {0, 3, 16, 8, 10, 24, 8},
    {9, 5, 16, 16, 24, 40, 40},  {3, 2, 128, 64, 128, 192, 64}, {5, 3, 128, 64, 128, 256, 16},
    {20, 1, 8, 16, 8, 24, 1048}, {11, 3, 48, 34, 128, 128, 520}};

struct Operands {
  DType type;
  Sizes size;
  Rotation rotation;
  Margins margins;
  TestTensor in_q, in_k, q, k, v, r, dr, dq, dk, dv, din_q, din_k, positions, cos_sin;
  TestTensor latent, row, w, absorbed, u, o;

  Operands(DType type_, const Sizes& s, Rotation rotation_ = Rotation::kInterleaved,
           Margins margins_ = kOdd)
      : type(type_),
        size(s),
        rotation(rotation_),
        margins(margins_),
        in_q(random({s.tokens, s.heads * (s.nope + s.rope)}, 1)),
        in_k(random({s.tokens, s.heads * (s.nope + s.value)}, 2)),
        q(random(wide(s.heads * s.head_dim), 3)),
        k(random(wide(s.heads * s.head_dim), 4)),
        v(random(wide(s.heads * s.head_dim), 5)),
        r(random(wide(s.rope), 6)),
        dr(random(wide(s.rope), 7)),
        dq(random(wide(s.heads * s.head_dim), 8)),
        dk(random(wide(s.heads * s.head_dim), 9)),
        dv(random(wide(s.heads * s.head_dim), 10)),
        din_q(type, in_q.shape()),
        din_k(type, in_k.shape()),
        positions(DType::kI32, {s.tokens}),
        cos_sin(angles(s.rope)),
        latent(random({s.tokens, s.latent}, 11)),
        row(random(wide(s.latent + s.rope), 12)),
        w(random({s.heads * (s.nope + s.value), s.latent}, 13)),
        absorbed(random(wide(s.heads * (s.latent + s.rope)), 14)),
        u(random(wide(s.heads * s.latent), 15)),
        o(random(wide(s.heads * s.value), 16)) {
    for (std::int64_t t = 0; t < s.tokens; ++t)
      positions.set(t, static_cast<double>(t * 7 % kPositions));
  }
  [[nodiscard]] TestTensor random(const Shape& shape, std::uint64_t seed) const {
    return TestTensor::random(type, shape, seed);
  }
  [[nodiscard]] Shape wide(std::int64_t width) const {
    return {size.tokens, margins.before + width + margins.after};
  }
  template <class Tensor>
  auto heads(Tensor& x, std::int64_t count, std::int64_t head_dim) const {
    return heads_of(x.view(), margins.before, count, head_dim);
  }
  template <class Tensor>
  auto heads(Tensor& x) const {
    return heads(x, size.heads, size.head_dim);
  }
  [[nodiscard]] LatentDims dims() const { return {size.nope, size.rope, size.value}; }
  [[nodiscard]] LatentRope rope() const {
    if (rotation == Rotation::kNone) return {};
    return {positions, cos_sin, rotation == Rotation::kInterleaved};
  }
  LatentQueries queries() { return {heads(q), in_q, dims(), rope()}; }
  LatentKeys keys() {
    return {heads(k), heads(v), in_k, heads(std::as_const(r), 1, size.rope), dims(), rope()};
  }
  LatentQueriesBackward queries_backward() {
    return {din_q, heads(std::as_const(dq)), dims(), rope()};
  }
  LatentKeysBackward keys_backward() {
    return {
        din_k, heads(dr, 1, size.rope), heads(std::as_const(dk)), heads(std::as_const(dv)), dims(),
        rope()};
  }
  LatentRow cached() {
    return {heads(row, 1, size.latent + size.rope), latent, heads(std::as_const(r), 1, size.rope),
            rope()};
  }
  LatentAbsorbedQueries absorbed_queries() {
    return {heads(absorbed, size.heads, size.latent + size.rope), in_q, w, dims(), rope()};
  }
  LatentAbsorbedValues absorbed_values() {
    return {heads(o, size.heads, size.value), heads(std::as_const(u), size.heads, size.latent), w,
            dims()};
  }
  void run(Context& context) {
    latent_queries(context, queries());
    latent_keys(context, keys());
    latent_queries_backward(context, queries_backward());
    latent_keys_backward(context, keys_backward());
    latent_row(context, cached());
    latent_absorbed_queries(context, absorbed_queries());
    latent_absorbed_values(context, absorbed_values());
  }
  [[nodiscard]] std::string bits() const {
    std::string all;
    for (const TestTensor* x : {&q, &k, &v, &din_q, &din_k, &dr, &row, &absorbed, &o})
      all += x->bits();
    return all;
  }
  /// Without what stands beside heads.
  [[nodiscard]] std::vector<double> dense(const TestTensor& x) const {
    const std::vector<double> all = x.values();
    std::vector<double> columns;
    for (std::int64_t t = 0; t < size.tokens; ++t) {
      const auto begin = all.begin() + t * x.shape()[1];
      columns.insert(columns.end(), begin + margins.before, begin + x.shape()[1] - margins.after);
    }
    return columns;
  }
  [[nodiscard]] reference::LatentCase reference_case() const {
    const auto count = [](std::int64_t x) { return static_cast<std::size_t>(x); };
    reference::LatentCase c{count(size.tokens),
                            count(size.heads),
                            count(size.nope),
                            count(size.rope),
                            count(size.value),
                            count(size.head_dim),
                            rotation == Rotation::kInterleaved,
                            {},
                            {}};
    if (rotation != Rotation::kNone) {
      c.positions = positions.values();
      c.cos_sin = cos_sin.values();
    }
    return c;
  }
};

void expect_reference(Context& context, Operands& x) {
  x.run(context);
  test_device::synchronize();
  const reference::LatentCase c = x.reference_case();
  const Tolerance tolerance{tolerance_of(x.type).relative, 1e-6};
  const Tolerance sums{tolerance_of(x.type).relative, 4e-6};
  expect_close(x.dense(x.q), reference::latent_queries(c, x.in_q.values()), tolerance, "q");
  const auto keys = reference::latent_keys(c, x.in_k.values(), x.dense(x.r));
  expect_close(x.dense(x.k), keys.k, tolerance, "k");
  expect_close(x.dense(x.v), keys.v, {0}, "v");
  expect_close(x.din_q.values(), reference::latent_queries_backward(c, x.dense(x.dq)), tolerance,
               "din of queries");
  const auto gradients = reference::latent_keys_backward(c, x.dense(x.dk), x.dense(x.dv));
  expect_close(x.din_k.values(), gradients.din, {0}, "din of keys");
  expect_close(x.dense(x.dr), gradients.dr, sums, "dr");
  expect_close(x.dense(x.row), reference::latent_row(c, x.latent.values(), x.dense(x.r)), tolerance,
               "row");
  expect_close(x.dense(x.absorbed),
               reference::latent_absorbed_queries(c, x.in_q.values(), x.w.values()), sums,
               "absorbed queries");
  expect_close(x.dense(x.o), reference::latent_absorbed_values(c, x.dense(x.u), x.w.values()), sums,
               "absorbed values");
}

TEST_P(LatentHeads, values_by_hand) {
  Context context = test_context(GetParam());
  // Position 1 turns pair 0 by 90 degrees and pair 1 by none.
  const TestTensor cos_sin = TestTensor::of(DType::kF32, {2, 4}, {1, 1, 0, 0, 0, 1, 1, 0}),
                   positions = TestTensor::of(DType::kI32, {1}, {1}),
                   in = TestTensor::of(DType::kF32, {1, 5}, {9, 1, 2, 3, 4});
  TestTensor q = TestTensor::of(DType::kF32, {1, 7}, {5, 5, 5, 5, 5, 5, 5}),
             din(DType::kF32, {1, 5});
  LatentQueries args{heads_of(q.view(), 0, 1, 7), in, {1, 4, 0}, {positions, cos_sin, true}};
  latent_queries(context, args);
  context.synchronize();
  EXPECT_EQ(q.values(), (std::vector<double>{9, -2, 3, 1, 4, 0, 0}));
  latent_queries_backward(context, {din, args.q, args.dims, args.rope});
  context.synchronize();
  EXPECT_EQ(din.values(), in.values());
  args.rope.interleaved = false;
  latent_queries(context, args);
  context.synchronize();
  EXPECT_EQ(q.values(), (std::vector<double>{9, -3, 2, 1, 4, 0, 0}));
}

TEST_P(LatentHeads, all_ops_equal_the_reference_for_odd_sizes_and_any_threads) {
  for (const int threads : {1, 3}) {
    Context context = test_context(GetParam(), threads);
    if (context.on_gpu() && threads > 1) break;
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const Sizes& size : kSmall) {
        for (const Rotation rotation :
             {Rotation::kInterleaved, Rotation::kHalves, Rotation::kNone}) {
          SCOPED_TRACE(testing::Message()
                       << "dims " << size.nope << ", " << size.rope << ", " << size.value
                       << ", rotation " << static_cast<int>(rotation));
          Operands x(type, size, rotation);
          expect_reference(context, x);
        }
      }
    }
  }
}

TEST_P(LatentHeads, aligned_rows_equal_the_reference) {
  Context context = test_context(GetParam(), 2);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const Sizes& size : {Sizes{9, 5, 16, 16, 24, 40, 40},
                              {3, 2, 128, 64, 128, 192, 128},
                              {5, 3, 128, 64, 128, 256, 512},
                              {33, 1, 0, 32, 8, 64, 64},
                              {5, 7, 16, 0, 64, 64, 8}}) {
      for (const Rotation rotation : {Rotation::kInterleaved, Rotation::kHalves, Rotation::kNone}) {
        Operands x(type, size, rotation, kAligned);
        expect_reference(context, x);
      }
    }
  }
}

TEST_P(LatentHeads, columns_beside_the_heads_are_not_touched) {
  Context context = test_context(GetParam());
  for (const Margins margins : {kOdd, kAligned}) {
    Operands x(DType::kBF16, {5, 3, 16, 16, 8, 40, 24}, Rotation::kInterleaved, margins);
    const Operands before = x;
    x.run(context);
    test_device::synchronize();
    for (const auto member : {&Operands::q, &Operands::k, &Operands::v, &Operands::dr,
                              &Operands::row, &Operands::absorbed, &Operands::o}) {
      const std::vector<double> now = (x.*member).values(), then = (before.*member).values();
      const std::int64_t width = (x.*member).shape()[1];
      for (std::int64_t i = 0; i < std::ssize(now); ++i) {
        const std::int64_t column = i % width;
        const bool of_heads = column >= margins.before && column < width - margins.after;
        EXPECT_TRUE(of_heads ||
                    now[static_cast<std::size_t>(i)] == then[static_cast<std::size_t>(i)])
            << i;
      }
    }
  }
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

TEST_P(LatentHeads, backward_is_the_transposed_map) {
  Context context = test_context(GetParam(), 2);
  for (const Sizes& size : kSmall) {
    for (const Rotation rotation : {Rotation::kInterleaved, Rotation::kHalves, Rotation::kNone}) {
      Operands x(DType::kF32, size, rotation);
      x.run(context);
      test_device::synchronize();
      const double bound = 1e-6 * static_cast<double>(1 + x.dense(x.q).size());
      EXPECT_NEAR(dot(x.dense(x.dq), x.dense(x.q)), dot(x.din_q.values(), x.in_q.values()), bound);
      EXPECT_NEAR(dot(x.dense(x.dk), x.dense(x.k)) + dot(x.dense(x.dv), x.dense(x.v)),
                  dot(x.din_k.values(), x.in_k.values()) + dot(x.dense(x.dr), x.dense(x.r)), bound);
    }
  }
}

/// [T, heads (N + V)]: what latents expand to.
TestTensor expanded(const Operands& x) {
  TestTensor in(x.type, x.in_k.shape());
  const std::vector<double> latent = x.latent.values(), w = x.w.values();
  const std::int64_t width = in.shape()[1], count = x.size.latent;
  for (std::int64_t i = 0; i < x.size.tokens * width; ++i) {
    const auto row = latent.begin() + i / width * count, of_w = w.begin() + i % width * count;
    in.set(i, std::inner_product(row, row + count, of_w, 0.0));
  }
  return in;
}

TEST_P(LatentHeads, a_query_meets_rows_as_it_meets_the_keys_and_values_that_they_stand_for) {
  Context context = test_context(GetParam(), 2);
  const Sizes size{9, 3, 16, 8, 10, 24, 20};
  Operands x(DType::kF32, size);
  x.in_k = expanded(x);
  x.run(context);
  test_device::synchronize();
  const std::vector<double> q = x.dense(x.q), k = x.dense(x.k), absorbed = x.dense(x.absorbed),
                            row = x.dense(x.row);
  const std::int64_t width = size.latent + size.rope, pairs = size.tokens * size.tokens;
  const auto dot_at = [](const std::vector<double>& a, std::int64_t i, const std::vector<double>& b,
                         std::int64_t j, std::int64_t count) {
    return std::inner_product(a.begin() + i, a.begin() + i + count, b.begin() + j, 0.0);
  };
  for (std::int64_t pair = 0; pair < pairs * size.heads; ++pair) {
    const std::int64_t h = pair % size.heads, t = pair / size.heads / size.tokens,
                       key = pair / size.heads % size.tokens;
    EXPECT_NEAR(dot_at(absorbed, (t * size.heads + h) * width, row, key * width, width),
                dot_at(q, (t * size.heads + h) * size.head_dim, k,
                       (key * size.heads + h) * size.head_dim, size.head_dim),
                1e-4);
  }
  // Weights of 1: u is each token's latent itself.
  for (std::int64_t i = 0; i < size.tokens * size.heads * size.latent; ++i) {
    const std::int64_t t = i / (size.heads * size.latent), column = i % (size.heads * size.latent);
    x.u.set(t * x.u.shape()[1] + x.margins.before + column,
            row[static_cast<std::size_t>(t * width + column % size.latent)]);
  }
  latent_absorbed_values(context, x.absorbed_values());
  test_device::synchronize();
  const std::vector<double> o = x.dense(x.o), v = x.dense(x.v);
  for (std::int64_t i = 0; i < std::ssize(o); ++i) {
    EXPECT_NEAR(o[static_cast<std::size_t>(i)],
                v[static_cast<std::size_t>(i / size.value * size.head_dim + i % size.value)], 1e-5);
  }
}

TEST_P(LatentHeads, a_token_has_the_bits_that_it_has_alone_and_with_any_threads) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const Margins margins : {kOdd, kAligned, Margins{16, 4}}) {
      Context one = test_context(GetParam(), 1), three = test_context(GetParam(), 3);
      const Sizes size{11, 3, 22, 16, 12, 40, 520};
      Operands all(type, size, Rotation::kInterleaved, margins), threads = all, alone = all;
      all.run(one);
      threads.run(three);
      test_device::synchronize();
      EXPECT_TRUE(all.bits() == threads.bits());
      for (std::int64_t t = 0; t < size.tokens; ++t) {
        LatentAbsorbedQueries queries = alone.absorbed_queries();
        queries.out = queries.out.rows(t, 1);
        queries.in_TX = queries.in_TX.rows(t, 1);
        queries.rope.positions_T = queries.rope.positions_T.rows(t, 1);
        latent_absorbed_queries(three, queries);
        LatentAbsorbedValues values = alone.absorbed_values();
        values.o = values.o.rows(t, 1);
        values.u = values.u.rows(t, 1);
        latent_absorbed_values(three, values);
      }
      test_device::synchronize();
      EXPECT_TRUE(alone.absorbed.bits() == all.absorbed.bits());
      EXPECT_TRUE(alone.o.bits() == all.o.bits());
    }
  }
}

TEST_P(LatentHeads, every_order_of_threads_gives_the_same_bits) {
  Context context = test_context(GetParam(), 2);
  for (const Margins margins : {kOdd, kAligned}) {
    expect_same_bits([&] {
      Operands x(DType::kBF16, {9, 3, 16, 16, 24, 40, 72}, Rotation::kInterleaved, margins);
      x.run(context);
      return x.bits();
    });
  }
}

TEST_P(LatentHeads, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  Operands x(DType::kF32, {4, 2, 6, 4, 5, 12, 7});
  const TestTensor narrow(DType::kF32, {4, 9});
  TestTensor half(DType::kBF16, {4, 40});
  const auto queries = [&](auto change, const std::string& message) {
    LatentQueries args = x.queries();
    change(args);
    expect_refused([&] { latent_queries(context, args); }, "latent_queries." + message);
  };
  queries([&](auto& a) { a.in_TX = narrow; }, "in: expected [4, 20] fp32, found [4, 9] fp32");
  queries([&](auto& a) { a.q = heads_of(half.view(), 0, 2, 12); },
          "in: expected [4, 20] bf16, found [4, 20] fp32");
  queries([&](auto& a) { a.q = x.heads(x.q, 2, 9); }, "q: a head has fewer dims than its parts");
  queries([&](auto& a) { a.dims.rope = 3; }, "dims: an odd part cannot rotate in pairs");
  queries([&](auto& a) { a.dims.nope = -1; }, "dims: negative");
  queries([&](auto& a) { a.rope.cos_sin_PR = narrow; }, "cos_sin: expected [4, 4] fp32");
  queries([&](auto& a) { a.rope.positions_T = narrow; }, "positions: expected [4] int32");
  queries([&](auto& a) { a.q.data = x.in_q.view().data; }, "q: may not be an input");
  if (!context.on_gpu()) {
    TestTensor beyond = x.positions;
    beyond.set(3, kPositions);
    queries([&](auto& a) { a.rope.positions_T = beyond; },
            "positions[3]: expected 0 to 39, found 40");
  }
  LatentKeys keys = x.keys();
  keys.v.heads = 1;
  expect_refused([&] { latent_keys(context, keys); },
                 "latent_keys.v: expected heads [4, 2, 12] fp32");
  keys = x.keys();
  keys.r.head_dim = 2;
  expect_refused([&] { latent_keys(context, keys); },
                 "latent_keys.r: expected heads [4, 1, 4] fp32");
  LatentKeysBackward back = x.keys_backward();
  back.dr.tokens = 3;
  expect_refused([&] { latent_keys_backward(context, back); }, "latent_keys_backward.dr");
  LatentRow row = x.cached();
  row.latent_TL = narrow;
  expect_refused([&] { latent_row(context, row); }, "latent_row.r: expected heads [4, 1, 2] fp32");
  LatentAbsorbedQueries absorbed = x.absorbed_queries();
  absorbed.w_XL = narrow;
  expect_refused([&] { latent_absorbed_queries(context, absorbed); },
                 "latent_absorbed_queries.w: expected [22, 9] fp32, found [4, 9] fp32");
  LatentAbsorbedValues values = x.absorbed_values();
  values.u.head_dim = 10;
  expect_refused([&] { latent_absorbed_values(context, values); },
                 "latent_absorbed_values.u: expected heads [4, 2, 7] fp32");
}

}  // namespace
}  // namespace trireme
