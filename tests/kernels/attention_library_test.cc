// Attention by a library: the graph that it gets, interpreted in double, and the op around it,
// whose layouts and scratch memory are our own. With a GPU and cuDNN also its own results beside
// ours.
#include <cmath>
#include <set>
#include <utility>

#include "kernels/attention/attention_internal.h"
#include "kernels/attention_support.h"
#include "kernels/common/kernel_choices.h"

namespace trireme {
namespace {

using namespace attention_testing;

// ---- the graph ----

/// Grouped heads in rows that are wider than they.
AttentionLayout grouped(bool deterministic) {
  return {2, 5, 4, 2, 24, 8, 120, 72, 48, 32, 56, deterministic};
}

TEST(AttentionLibraryGraph, tensors_lie_as_the_heads_do) {
  const AttentionGraph graph = attention_graph(grouped(false), LibraryPass::kBackward);
  using Dims = std::array<std::int64_t, 4>;
  const auto expect_tensor = [&](LibraryTensor which, const Dims& dims, const Dims& strides,
                                 GraphTensor::Type type) {
    const GraphTensor* tensor = graph.find(which);
    ASSERT_NE(tensor, nullptr) << static_cast<int>(which);
    EXPECT_EQ(tensor->dims, dims) << static_cast<int>(which);
    EXPECT_EQ(tensor->strides, strides) << static_cast<int>(which);
    EXPECT_EQ(tensor->type, type) << static_cast<int>(which);
    EXPECT_EQ(tensor->storage, GraphTensor::Storage::kMemory);
  };
  using Type = GraphTensor::Type;
  expect_tensor(LibraryTensor::kQ, {2, 4, 5, 24}, {5 * 120, 24, 120, 1}, Type::kBF16);
  // Keys and values stand on the right of a product there.
  expect_tensor(LibraryTensor::kK, {2, 2, 24, 5}, {5 * 72, 24, 1, 72}, Type::kBF16);
  expect_tensor(LibraryTensor::kV, {2, 2, 8, 5}, {5 * 48, 8, 1, 48}, Type::kBF16);
  expect_tensor(LibraryTensor::kO, {2, 4, 5, 8}, {5 * 32, 8, 32, 1}, Type::kBF16);
  expect_tensor(LibraryTensor::kDO, {2, 4, 5, 8}, {5 * 56, 8, 56, 1}, Type::kBF16);
  expect_tensor(LibraryTensor::kLse, {2, 4, 5, 1}, {20, 5, 1, 1}, Type::kF32);
  expect_tensor(LibraryTensor::kDelta, {2, 4, 5, 1}, {20, 5, 1, 1}, Type::kF32);
  expect_tensor(LibraryTensor::kDQ, {2, 4, 5, 24}, {5 * 96, 24, 96, 1}, Type::kBF16);
  expect_tensor(LibraryTensor::kDK, {2, 2, 5, 24}, {5 * 48, 24, 48, 1}, Type::kBF16);
  expect_tensor(LibraryTensor::kDV, {2, 2, 5, 8}, {5 * 16, 8, 16, 1}, Type::kBF16);
  expect_tensor(LibraryTensor::kDQSum, {2, 4, 5, 24}, {480, 120, 24, 1}, Type::kF32);
  AttentionLayout written = grouped(true);
  written.written_stride = 168;
  const AttentionGraph rows = attention_graph(written, LibraryPass::kBackward);
  EXPECT_EQ(rows.find(LibraryTensor::kDQ)->strides, (Dims{5 * 168, 24, 168, 1}));
  EXPECT_EQ(rows.find(LibraryTensor::kDV)->strides, (Dims{5 * 168, 8, 168, 1}));
  const AttentionGraph forward = attention_graph(grouped(true), LibraryPass::kForward);
  EXPECT_EQ(forward.find(LibraryTensor::kV)->dims, (Dims{2, 2, 5, 8}));
  EXPECT_EQ(forward.find(LibraryTensor::kDO), nullptr);
  EXPECT_EQ(attention_graph(grouped(true), LibraryPass::kBackward).find(LibraryTensor::kDQSum),
            nullptr);
}

TEST(AttentionLibraryGraph, no_two_tensors_have_one_name) {
  for (const bool deterministic : {true, false}) {
    for (const LibraryPass pass : {LibraryPass::kForward, LibraryPass::kBackward}) {
      std::set<std::int64_t> ids;
      const AttentionGraph graph = attention_graph(grouped(deterministic), pass);
      for (const GraphTensor& tensor : graph.tensors)
        EXPECT_TRUE(ids.insert(tensor.id).second) << tensor.id;
    }
  }
}

TEST(AttentionLibraryGraph, scratch_has_room_for_each_part_and_no_two_overlap) {
  const AttentionLayout shape = grouped(false);
  const LibraryScratch scratch = library_scratch(shape, LibraryPass::kBackward, 1000);
  const std::vector<std::size_t> begins = {scratch.lse,      scratch.delta, scratch.dq,
                                           scratch.dk,       scratch.dv,    scratch.dq_sum,
                                           scratch.workspace};
  const std::vector<std::size_t> bytes = {160, 160, 1920, 960, 320, 3840, 1000};
  for (std::size_t i = 0; i < begins.size(); ++i) {
    EXPECT_EQ(begins[i] % 256, 0u);
    const std::size_t end = i + 1 < begins.size() ? begins[i + 1] : scratch.bytes;
    EXPECT_LE(begins[i] + bytes[i], end) << i;
  }
  EXPECT_LE(library_scratch(grouped(true), LibraryPass::kBackward, 1000).bytes + 3840,
            scratch.bytes);
  AttentionLayout written = shape;
  written.written_stride = 64;
  EXPECT_EQ(library_scratch(written, LibraryPass::kBackward, 1000).bytes + 2048 + 1024 + 512,
            scratch.bytes);
}

// ---- the op around it ----

/// bf16 heads at addresses that a library reads, in rows of q, k, v and a gap, with the reference's
/// results.
struct LibraryProblem {
  AttentionCase c;
  TestTensor qkv, d_o, o, lse, delta;
  std::vector<PositionRange> all;

  LibraryProblem(std::int64_t sequences, std::int64_t tokens, std::int64_t heads,
                 std::int64_t kv_heads, std::int64_t head_dim, std::int64_t value_dim)
      : c{sequences, heads, kv_heads, head_dim, value_dim, {}, {}, {}, 0, {}, {}, {}},
        qkv(aligned(sequences * tokens, values_begin() + kv_heads * value_dim + 8, 1)),
        d_o(aligned(sequences * tokens, heads * value_dim, 2)),
        o(DType::kBF16, {sequences * tokens, heads * value_dim}, 0),
        lse(DType::kF32, {sequences * tokens, heads}),
        delta(DType::kF32, {sequences * tokens, heads}),
        all{{0, tokens}} {
    c.q_ranges = c.kv_ranges = all;
    c.scale = static_cast<float>(1.5 / std::sqrt(static_cast<double>(head_dim)));
    c.q = packed(heads_at(0, heads));
    c.k = packed(heads_at(heads * head_dim, kv_heads));
    c.v = packed(values_in(qkv));
  }
  LibraryProblem(std::int64_t sequences, std::int64_t tokens, std::int64_t heads,
                 std::int64_t kv_heads, std::int64_t head_dim)
      : LibraryProblem(sequences, tokens, heads, kv_heads, head_dim, head_dim) {}
  static TestTensor aligned(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
    const std::vector<double> values =
        TestTensor::random(DType::kBF16, {rows, columns}, seed).values();
    TestTensor tensor(DType::kBF16, {rows, columns}, 0);
    for (std::size_t i = 0; i < values.size(); ++i)
      tensor.set(static_cast<std::int64_t>(i), values[i]);
    return tensor;
  }
  [[nodiscard]] ConstHeadsView heads_at(std::int64_t column, std::int64_t count) const {
    return heads_of(std::as_const(qkv).view(), column, count, c.head_dim);
  }
  [[nodiscard]] std::int64_t values_begin() const { return (c.heads + c.kv_heads) * c.head_dim; }
  [[nodiscard]] ConstHeadsView values_in(const TestTensor& rows) const {
    return heads_of(rows.view(), values_begin(), c.kv_heads, c.value_dim);
  }
  [[nodiscard]] AttentionShape shape() const {
    return {c.sequences, c.q_tokens(), c.q_tokens(), c.heads,
            c.kv_heads,  c.head_dim,   c.value_dim,  DType::kBF16};
  }
  AttentionForward forward() {
    AttentionForward args;
    args.o = values(o, c, c.heads);
    args.lse_TH = lse;
    args.q = heads_at(0, c.heads);
    args.k = heads_at(c.heads * c.head_dim, c.kv_heads);
    args.v = values_in(qkv);
    args.mask = {c.sequences, all, all, {}};
    args.scale = static_cast<float>(c.scale);
    return args;
  }
  /// With the results of forward().
  AttentionBackward backward(Gradients& g) {
    const AttentionForward before = forward();
    AttentionBackward args;
    args.dq = heads(g.dq, c, c.heads);
    args.dk = heads(g.dk, c, c.kv_heads);
    args.dv = values(g.dv, c, c.kv_heads);
    args.d_o = values(std::as_const(d_o), c, c.heads);
    args.q = before.q;
    args.k = before.k;
    args.v = before.v;
    args.lse_TH = lse;
    args.delta_TH = delta;
    args.mask = before.mask;
    args.scale = before.scale;
    args.o = before.o;
    return args;
  }
  /// Where gradients may be written: rows of dq, dk, dv and a gap, all ones.
  [[nodiscard]] TestTensor written() const {
    const Shape rows{c.sequences * c.q_tokens(), values_begin() + c.kv_heads * c.value_dim + 8};
    TestTensor tensor(DType::kBF16, rows, 0);
    for (std::int64_t i = 0; i < rows.count(); ++i) tensor.set(i, 1);
    return tensor;
  }
  AttentionBackward::Written heads_to_write(TestTensor& to) const {
    return {heads_of(to.view(), 0, c.heads, c.head_dim),
            heads_of(to.view(), c.heads * c.head_dim, c.kv_heads, c.head_dim),
            heads_of(to.view(), values_begin(), c.kv_heads, c.value_dim)};
  }
  /// Ones, which must still be in the sums.
  [[nodiscard]] Gradients gradients() const {
    const std::int64_t rows = c.sequences * c.q_tokens();
    const auto ones = [&](std::int64_t columns) {
      return TestTensor::of(DType::kF32, {rows, columns},
                            std::vector<double>(static_cast<std::size_t>(rows * columns), 1));
    };
    return {ones(c.heads * c.head_dim + 3), ones(c.kv_heads * c.head_dim + 4),
            ones(c.kv_heads * c.value_dim)};
  }
};

/// The program's library of attention, which notes what it is asked for.
std::vector<std::pair<AttentionLayout, LibraryPass>> asked;
const AttentionLibraryKernels& noting() {
  static const AttentionLibraryKernels& real = attention_internal::attention_library();
  static const AttentionLibraryKernels kernels = {
      real.missing, real.version,
      [](const AttentionLayout& shape, LibraryPass pass) {
        asked.emplace_back(shape, pass);
        return real.workspace_bytes(shape, pass);
      },
      real.run};
  return kernels;
}

class AttentionLibrary : public OpTest {
 protected:
  void SetUp() override {
    if (!on_gpu()) GTEST_SKIP() << "a GPU's";
    if (!cudnn_attention.missing().empty()) GTEST_SKIP() << cudnn_attention.missing();
    asked.clear();
  }
};
TRIREME_FOR_ALL_ISAS(AttentionLibrary);

/// P and dS are rounded to bf16, and so are the results.
constexpr Tolerance kRounded = {1.02 / 128, 1.0 / 128};

void expect_reference(LibraryProblem& problem, Context& context, const std::string& what) {
  const auto expected = reference::attention_forward(problem.c);
  attention_internal::forward_by_library(context, problem.shape(), problem.forward(), noting());
  test_device::synchronize();
  const AttentionCase& c = problem.c;
  expect_close(packed(values(std::as_const(problem.o), c, c.heads)), expected.o, kRounded,
               what + " o");
  expect_close(problem.lse.values(), expected.lse, {1e-5, 1e-5}, what + " lse");
  const auto d_o = packed(values(std::as_const(problem.d_o), c, c.heads));
  const auto delta = reference::attention_delta(c, d_o, expected.o);
  auto wanted = reference::attention_backward(c, d_o, expected.lse, delta);
  for (const bool deterministic : {true, false}) {
    context.set_deterministic(deterministic);
    Gradients g = problem.gradients();
    attention_internal::backward_by_library(context, problem.shape(), problem.backward(g),
                                            noting());
    test_device::synchronize();
    const auto without_ones = [](std::vector<double> sums) {
      for (double& sum : sums) sum -= 1;
      return sums;
    };
    expect_close(without_ones(packed(heads(std::as_const(g.dq), c, c.heads))), wanted.dq, kRounded,
                 what + " dq");
    expect_close(without_ones(packed(heads(std::as_const(g.dk), c, c.kv_heads))), wanted.dk,
                 kRounded, what + " dk");
    expect_close(without_ones(packed(values(std::as_const(g.dv), c, c.kv_heads))), wanted.dv,
                 kRounded, what + " dv");

    TestTensor to = problem.written();
    Gradients left_alone = problem.gradients();
    AttentionBackward writing = problem.backward(left_alone);
    writing.written = problem.heads_to_write(to);
    attention_internal::backward_by_library(context, problem.shape(), writing, noting());
    expect_close(packed(writing.written.dq), wanted.dq, kRounded, what + " dq, written");
    expect_close(packed(writing.written.dk), wanted.dk, kRounded, what + " dk, written");
    expect_close(packed(writing.written.dv), wanted.dv, kRounded, what + " dv, written");
    EXPECT_EQ(left_alone.dq.bits(), problem.gradients().dq.bits()) << what;
    const std::vector<double> all = to.values();
    const auto row = static_cast<std::size_t>(to.shape()[1]);
    for (std::size_t end = row; end <= all.size(); end += row)
      for (std::size_t i = end - 8; i < end; ++i) ASSERT_EQ(all[i], 1) << what << " gap";
  }
}

TEST_P(AttentionLibrary, the_graph_and_what_is_around_it_equal_the_reference) {
  Context context = test_context(GetParam());
  LibraryProblem grouped_heads(2, 19, 4, 2, 16), alike(1, 7, 3, 3, 8), one_key_head(3, 4, 2, 1, 24),
      narrow_values(2, 9, 4, 2, 24, 8);
  expect_reference(grouped_heads, context, "grouped");
  expect_reference(alike, context, "alike");
  expect_reference(one_key_head, context, "one key head");
  expect_reference(narrow_values, context, "narrow values");
}

TEST_P(AttentionLibrary, it_is_asked_for_the_operands_rows) {
  Context context = test_context(GetParam());
  LibraryProblem problem(1, 6, 4, 2, 8);
  expect_reference(problem, context, "once");
  ASSERT_EQ(asked.size(), 5u);
  const std::int64_t row = (4 + 2 * 2) * 8 + 8;
  EXPECT_EQ(asked[0], std::pair(AttentionLayout({1, 6, 4, 2, 8, 8, row, row, row, 32, 0, true}),
                                LibraryPass::kForward));
  EXPECT_EQ(asked[1], std::pair(AttentionLayout({1, 6, 4, 2, 8, 8, row, row, row, 32, 32, true}),
                                LibraryPass::kBackward));
  EXPECT_EQ(asked[2],
            std::pair(AttentionLayout({1, 6, 4, 2, 8, 8, row, row, row, 32, 32, true, row}),
                      LibraryPass::kBackward));
  EXPECT_FALSE(asked[3].first.deterministic);
}

TEST_P(AttentionLibrary, what_a_library_does_not_serve_is_refused) {
  Context context = test_context(GetParam());
  LibraryProblem problem(1, 6, 2, 1, 8);
  const auto refused = [&](const AttentionForward& args, AttentionShape shape,
                           const std::string& message) {
    expect_refused([&] { attention_internal::forward_by_library(context, shape, args, noting()); },
                   message);
  };
  const AttentionForward good = problem.forward();
  AttentionShape f32 = problem.shape();
  f32.type = DType::kF32;
  refused(good, f32, "a library serves bf16");
  AttentionForward later = good;
  const std::vector<PositionRange> second = {{6, 6}};
  later.mask.q = second;
  refused(later, problem.shape(), "whole sequences");
  AttentionForward documents = good;
  const TestTensor first_key(DType::kI32, {6});
  documents.mask.first_key_T = first_key;
  refused(documents, problem.shape(), "no documents");
  AttentionForward window = good;
  window.mask.window = 4;
  refused(window, problem.shape(), "no windows");
  AttentionForward unaligned = good;
  unaligned.k.data += 2;
  refused(unaligned, problem.shape(), "multiples of 16 bytes");
  AttentionShape narrow = problem.shape();
  narrow.head_dim = 12;
  refused(good, narrow, "heads of a multiple of 8");
  narrow = problem.shape();
  narrow.value_dim = 4;
  refused(good, narrow, "v: a library serves heads of a multiple of 8");
  EXPECT_TRUE(asked.empty());
}

TEST_P(AttentionLibrary, longer_sequences_and_other_heads_equal_the_reference) {
  constexpr std::int64_t kStandIn = 1;  // of kernels/simt_host
  if (cudnn_attention.version() == kStandIn) GTEST_SKIP() << "it takes minutes on the host";
  Context context = test_context(GetParam());
  for (const auto& [tokens, head_dim] : {std::pair<std::int64_t, std::int64_t>{64, 64},
                                         {257, 64},
                                         {130, 80},
                                         {129, 96},
                                         {131, 128}}) {
    LibraryProblem grouped_heads(2, tokens, 4, 2, head_dim), alike(1, tokens, 2, 2, head_dim);
    const std::string what = "T" + std::to_string(tokens) + " D" + std::to_string(head_dim);
    expect_reference(grouped_heads, context, what + ", grouped");
    expect_reference(alike, context, what);
  }
}

TEST_P(AttentionLibrary, the_same_bits_twice_where_they_are_promised) {
  LibraryProblem problem(2, 13, 4, 2, 8);
  expect_same_bits([&] {
    Context context = test_context(GetParam());
    attention_internal::forward_by_library(context, problem.shape(), problem.forward(), noting());
    Gradients g = problem.gradients();
    attention_internal::backward_by_library(context, problem.shape(), problem.backward(g),
                                            noting());
    test_device::synchronize();
    return problem.o.bits() + g.dq.bits() + g.dk.bits() + g.dv.bits();
  });
}

/// The op itself, as the model calls it.
TEST_P(AttentionLibrary, a_context_that_wants_it_gets_it) {
  Context context = test_context(GetParam());
  context.set_attention_backend(cudnn_attention);
  LibraryProblem problem(1, 9, 2, 1, 8);
  attention_forward(context, problem.forward());
  test_device::synchronize();
  expect_close(problem.lse.values(), reference::attention_forward(problem.c).lse, {1e-5, 1e-5},
               "lse");
  Gradients g = problem.gradients();
  AttentionBackward without = problem.backward(g);
  without.o = {};
  expect_refused([&] { attention_backward(context, without); }, "a library makes delta of it");
}

TEST_P(AttentionLibrary, gradients_are_written_where_a_library_makes_them) {
  Context context = test_context(GetParam());
  LibraryProblem problem(2, 9, 2, 1, 8);
  attention_forward(context, problem.forward());
  TestTensor to = problem.written();
  Gradients g = problem.gradients();
  AttentionBackward args = problem.backward(g);
  EXPECT_EQ(attention_backward_writes(context, args), AttentionWrites::kNo)
      << "nowhere to write to";
  args.written = problem.heads_to_write(to);
  EXPECT_EQ(attention_backward_writes(context, args), AttentionWrites::kNo)
      << "our own kernels add such heads";
  expect_refused([&] { attention_backward(context, args); }, "given, where gradients are added");
  context.set_attention_backend(cudnn_attention);
  EXPECT_EQ(attention_backward_writes(context, args), AttentionWrites::kFromOutput);
  attention_backward(context, args);
  const auto forward = reference::attention_forward(problem.c);
  const auto d_o = packed(args.d_o);
  const auto wanted = reference::attention_backward(
      problem.c, d_o, forward.lse, reference::attention_delta(problem.c, d_o, forward.o));
  expect_close(packed(args.written.dq), wanted.dq, kRounded, "dq");
  args.written.dk.token_stride -= 1;
  EXPECT_EQ(attention_backward_writes(context, args), AttentionWrites::kNo)
      << "rows of two strides";

  for (const AttentionKernel kernel : {AttentionKernel::kOwn, AttentionKernel::kLibrary}) {
    KernelChoices choices;
    choices.add({9, 2, 1, 8, 8, true}, {.kernel = kernel, .microseconds = {}});
    context.set_kernel_choices(&choices);
    context.set_attention_backend(fastest_attention);
    args.written = problem.heads_to_write(to);
    EXPECT_EQ(attention_backward_writes(context, args), kernel == AttentionKernel::kLibrary
                                                            ? AttentionWrites::kFromOutput
                                                            : AttentionWrites::kNo);
    context.set_kernel_choices(nullptr);
  }
}

// ---- the faster of both ----

/// The bits of what both passes give through the op.
std::pair<std::string, std::string> passes_of(Context& context, LibraryProblem& problem) {
  attention_forward(context, problem.forward());
  Gradients g = problem.gradients();
  attention_backward(context, problem.backward(g));
  test_device::synchronize();
  return {problem.o.bits() + problem.lse.bits(), g.dq.bits() + g.dk.bits() + g.dv.bits()};
}

TEST_P(AttentionLibrary, the_faster_of_both_is_what_the_choices_say_for_each_pass) {
  Context context = test_context(GetParam());
  const auto of = [&](const AttentionBackend& backend) {
    context.set_attention_backend(backend);
    LibraryProblem problem(2, 13, 4, 2, 8);
    return passes_of(context, problem);
  };
  const auto own = of(own_attention), library = of(cudnn_attention);
  ASSERT_NE(own.second, library.second);
  EXPECT_EQ(of(fastest_attention), own) << "nothing was measured";
  KernelChoices choices;
  context.set_kernel_choices(&choices);
  EXPECT_EQ(of(fastest_attention), own) << "nothing was measured, and nobody measures untold";
  EXPECT_EQ(choices.size(), 0U);
  choices.add(AttentionKey{13, 4, 2, 8, 8, false}, {AttentionKernel::kOwn, {}});
  choices.add(AttentionKey{13, 4, 2, 8, 8, true}, {AttentionKernel::kLibrary, {}});
  const auto mixed = of(fastest_attention);
  EXPECT_EQ(mixed.first, own.first);
  EXPECT_NE(mixed.second, own.second);
}

TEST(AttentionFastest, a_backward_pass_that_keeps_every_score_of_long_sequences_is_no_candidate) {
  AttentionLayout layout{1, 32'768, 32, 8, 128, 128, 4096, 1024, 1024, 4096, 4096, true};
  EXPECT_GT(cudnn_attention.bytes(layout, true), std::int64_t{32} << 30);
  EXPECT_EQ(fastest_attention.bytes(layout, true), cudnn_attention.bytes(layout, false));
  layout.deterministic = false;
  EXPECT_EQ(fastest_attention.bytes(layout, true), cudnn_attention.bytes(layout, true));
}

TEST_P(AttentionLibrary, measuring_gives_each_pass_that_both_serve_one_choice) {
  Context context = test_context(GetParam());
  context.set_attention_backend(fastest_attention);
  KernelChoices choices;
  choices.set_measuring(true);
  context.set_kernel_choices(&choices);
  LibraryProblem odd(1, 13, 4, 2, 12), one(1, 1, 4, 2, 8);
  attention_forward(context, odd.forward());
  attention_forward(context, one.forward());
  EXPECT_EQ(choices.size(), 0U) << "a library does not serve these";
  LibraryProblem problem(2, 13, 4, 2, 8);
  passes_of(context, problem);
  LibraryProblem more(3, 13, 4, 2, 8);
  passes_of(context, more);
  ASSERT_EQ(choices.attention().size(), 2U) << "one for each pass, for any number of sequences";
  for (const auto& [key, choice] : choices.attention()) {
    EXPECT_EQ(key, (AttentionKey{13, 4, 2, 8, 8, key.backward}));
    const bool library = choice.microseconds[1] < choice.microseconds[0];
    EXPECT_GT(choice.microseconds[0], 0);
    EXPECT_GT(choice.microseconds[1], 0);
    EXPECT_EQ(choice.kernel, library ? AttentionKernel::kLibrary : AttentionKernel::kOwn);
  }
}

}  // namespace
}  // namespace trireme
