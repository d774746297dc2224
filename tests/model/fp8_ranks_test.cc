// Tensor-parallel ranks have the codes of one rank in every product of fp8 operands, wherever their
// cuts fall: products in f32 of the same codes differ by the order of their sums alone.

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "model/fp8_linear.h"
#include "model/model_ranks.h"
#include "store/quantized_refresh.h"
#include "support/program_device.h"
#include "support/thread_ranks.h"

namespace trireme {
namespace {

using reference::Values;

// Of 3 and 2 ranks, each has parts of blocks of 128 of every cut dim.
constexpr std::int64_t kTokens = 30, kWhole = 144, kCut = 192, kCutToo = 96;

struct Linear {
  const char* name;
  bool in_is_cut, in_out;
};
constexpr Linear kLinears[] = {{"columns", false, false},
                               {"rows", true, false},
                               {"columns of gpt2", false, true},
                               {"rows of gpt2", true, true}};

/// One product, or two beside each other where the output is cut.
ModelParams declared(const Linear& of, const Fp8Precision& precision, AxisRank tensor) {
  const std::vector<CutSegment> cut = of.in_is_cut
                                          ? std::vector<CutSegment>{{kCut + kCutToo, 18}}
                                          : std::vector<CutSegment>{{kCut, 12}, {kCutToo, 6}};
  const std::int64_t all = kCut + kCutToo;
  const std::int64_t in = of.in_is_cut ? all : kWhole, out = of.in_is_cut ? kWhole : all;
  ModelParams params;
  ParamMeta meta;
  meta.name = "weight";
  meta.shape = of.in_out ? Shape{in, out} : Shape{out, in};
  meta.init = {InitKind::kNormal, 1};
  meta.cut = {of.in_is_cut == of.in_out ? 0 : 1, cut};
  params.metas.push_back(meta);
  ChunkParams& chunk = params.chunks.emplace_back();
  chunk.range.layers = 1;
  LinearParams linear;
  linear.weight = {0, 0};
  linear.in_out = of.in_out;
  chunk.blocks.emplace_back().attention.in = linear;
  ModelConfig config;
  config.layers.resize(1);
  declare_fp8(params, config, precision, tensor);
  return params;
}

/// Some columns, one after the other.
Values columns_of(const Values& x, std::int64_t width, const std::vector<Slice>& columns) {
  Values out;
  for (std::int64_t row = 0; row < std::ssize(x) / width; ++row) {
    for (const Slice& part : columns) {
      const auto begin = x.begin() + row * width + part.begin;
      out.insert(out.end(), begin, begin + part.size);
    }
  }
  return out;
}

struct Results {
  std::mutex mutex;
  std::vector<double> y, dx;  ///< sums over ranks, or whole
  std::vector<float> dweight;
};

struct BothHalves {
  TensorView dx_TK;
  ConstTensorView dy_TN, x_TK;
};
/// Made together they have the bits of each alone, which dx and the gradient hold.
void expect_together(const Fp8Products& products, const LinearWeights& weights,
                     LinearGradients gradients, const BothHalves& apart) {
  Context& context = products.context;
  const TensorView dweight = gradients.weight.gradient;
  const Buffer dx(DType::kF32, apart.dx_TK.shape, context.device()),
      of_weight(DType::kF32, dweight.shape, context.device());
  gradients.weight.gradient = of_weight.view();
  products.backward_both(dx.view(), apart.dy_TN, weights, {}, gradients,
                         [&] { return apart.x_TK; });
  EXPECT_EQ(read(context, dx.view()), read(context, apart.dx_TK));
  EXPECT_EQ(read(context, of_weight.view()), read(context, dweight));
}

class Fp8Ranks : public testing::TestWithParam<std::tuple<Fp8Recipe, int>> {
 protected:
  static void run(const Linear& of, const Fp8Precision& precision, Communicator& channel,
                  Results& results) {
    const AxisRank rank{channel.size(), channel.rank()};
    Context context(program_device(), 1, detect_isa());
    const ModelParams params = declared(of, precision, rank);
    ParamStore store(params.metas, DType::kBF16, {}, context.device(),
                     dense_distribution(0, {rank, {}, {}}));
    store.initialise(context, 5);
    const auto self = make_self_communicator();
    QuantizedRefresh(context, store, *self, channel).run();
    const TensorAxis axis = rank.extent == 1 ? TensorAxis() : TensorAxis(channel, true);

    const std::int64_t all = kCut + kCutToo;
    std::vector<Slice> mine;
    for (const CutPart& part : local_parts(params.metas[0].shape, params.metas[0].cut, rank))
      mine.push_back(
          {part.box.offset[params.metas[0].cut.dim], part.box.shape[params.metas[0].cut.dim]});
    const Values x = numbers(static_cast<std::size_t>(kTokens * (of.in_is_cut ? all : kWhole)), 1,
                             3),
                 dy = numbers(static_cast<std::size_t>(kTokens * (of.in_is_cut ? kWhole : all)), 2,
                              1);
    const Values x_here = of.in_is_cut ? columns_of(x, all, mine) : x,
                 dy_here = of.in_is_cut ? dy : columns_of(dy, all, mine);
    const std::int64_t in = std::ssize(x_here) / kTokens, out = std::ssize(dy_here) / kTokens;
    const auto buffer = [&](DType dtype, Shape shape) {
      return Buffer(dtype, shape, context.device());
    };
    const Buffer x_TK = buffer(DType::kBF16, {kTokens, in}),
                 dy_TN = buffer(DType::kBF16, {kTokens, out}),
                 y = buffer(DType::kF32, {kTokens, out}), dx = buffer(DType::kF32, {kTokens, in}),
                 again = buffer(DType::kF32, {kTokens, out}),
                 dweight = buffer(DType::kF32, of.in_out ? Shape{in, out} : Shape{out, in});
    write(context, x_TK.view(), x_here);
    write(context, dy_TN.view(), dy_here);

    const Fp8Widths widths{kTokens, in, out, rank.extent, true};
    ArenaCursor measure;
    lay_out_fp8(measure, {widths});
    const Memory memory(context.device(), measure.bytes());
    ArenaCursor arena(memory.data());
    const Fp8Products products{context, axis, precision, lay_out_fp8(arena, {widths})};
    const LinearParams& linear = params.chunks[0].blocks[0].attention.in;
    const ParamStore::Lease lease = store.acquire(0);
    const LinearWeights weights = weights_of(lease, linear);
    products.forward(y.view(), x_TK.view(), weights, {});
    products.backward_input(dx.view(), dy_TN.view(), weights, {});
    LinearGradients gradients;
    gradients.weight = {dweight.view(), Accumulate::kNo};
    gradients.in_out = of.in_out;
    gradients.fp8 = &*linear.fp8;
    products.backward_weight(gradients, dy_TN.view(), x_TK.view());
    expect_together(products, weights, gradients, {dx.view(), dy_TN.view(), x_TK.view()});
    if (!of.in_is_cut) {
      // From residual rows: the others hold what nobody may read.
      Values rows(x_here.size(), NAN);
      const TensorAxis::Rows own = axis.residual_range(kTokens);
      std::copy_n(x_here.begin() + own.first * in, own.count * in, rows.begin() + own.first * in);
      write(context, x_TK.view(), rows);
      products.forward_gathered(again.view(), {x_TK.view()}, weights, {});
      EXPECT_EQ(read(context, again.view()), read(context, y.view())) << of.name;
      expect_the_same_of_codes(products, weights, x_TK.view(), y.view());
    }
    collect(of, params.metas[0], mine, rank,
            {read(context, y.view()), read(context, dx.view()), read(context, dweight.view())},
            results);
  }

  /// Codes that stand in x's place, as a norm makes them.
  static void expect_the_same_of_codes(const Fp8Products& products, const LinearWeights& weights,
                                       TensorView x_TK, TensorView y_TN) {
    Context& context = products.context;
    const NormedRows n = products.normed_rows(x_TK, weights);
    if (!n.quantized.codes.given()) return;
    const TensorAxis::Rows own = products.tensor.residual_range(kTokens);
    const std::vector<float> rows = read(context, products.tensor.residual_rows(x_TK));
    const Buffer here(DType::kBF16, {own.count, x_TK.shape[1]}, context.device()),
        again(y_TN.dtype, y_TN.shape, context.device());
    write(context, here.view(), Values(rows.begin(), rows.end()));
    quantize(context, {rows_of(n.quantized.codes, own.first, own.count), here.view()});
    products.forward_gathered(again.view(), n, weights, {});
    EXPECT_EQ(read(context, again.view()), read(context, y_TN));
  }

  static void collect(const Linear& of, const ParamMeta& meta, const std::vector<Slice>& mine,
                      AxisRank rank, const std::vector<std::vector<float>>& found,
                      Results& results) {
    const std::lock_guard lock(results.mutex);
    const auto add = [](std::vector<double>& sum, const std::vector<float>& part) {
      sum.resize(part.size());
      for (std::size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
    };
    const auto put = [&](std::vector<double>& whole, const std::vector<float>& part) {
      const std::int64_t all = kCut + kCutToo, width = std::ssize(part) / kTokens;
      whole.resize(static_cast<std::size_t>(kTokens * all));
      for (std::int64_t row = 0; row < kTokens; ++row) {
        std::int64_t at = 0;
        for (const Slice& columns : mine) {
          for (std::int64_t c = 0; c < columns.size; ++c, ++at)
            whole[static_cast<std::size_t>(row * all + columns.begin + c)] =
                part[static_cast<std::size_t>(row * width + at)];
        }
      }
    };
    of.in_is_cut ? add(results.y, found[0]) : put(results.y, found[0]);
    of.in_is_cut ? put(results.dx, found[1]) : add(results.dx, found[1]);
    results.dweight.resize(static_cast<std::size_t>(meta.shape.count()));
    const std::int64_t local_width = local_shape(meta.shape, meta.cut, rank)[1];
    for (const CutPart& part : local_parts(meta.shape, meta.cut, rank)) {
      for (std::int64_t r = 0; r < part.box.shape[0]; ++r) {
        for (std::int64_t c = 0; c < part.box.shape[1]; ++c)
          results.dweight[static_cast<std::size_t>((part.box.offset[0] + r) * meta.shape[1] +
                                                   part.box.offset[1] + c)] =
              found[2][static_cast<std::size_t>((part.at[0] + r) * local_width + part.at[1] + c)];
      }
    }
  }
};

TEST_P(Fp8Ranks, multiply_the_codes_of_one_rank) {
  const auto [recipe, ranks] = GetParam();
  if (program_device().kind == DeviceKind::kCuda && ranks > 1)
    GTEST_SKIP() << "a GPU's kernels executed on the host take one thread";
  for (const Linear& of : kLinears) {
    const Fp8Precision precision{recipe, DType::kF8E5M2, {0, 0}};
    Results one, many;
    on_threads(1, [&](Communicator& channel) { run(of, precision, channel, one); });
    on_threads(ranks, [&](Communicator& channel) { run(of, precision, channel, many); });
    const std::string what =
        fmt::format("{}, {} ranks, recipe {}", of.name, ranks, static_cast<int>(recipe));
    const auto floats = [](const std::vector<double>& x) {
      return std::vector<float>(x.begin(), x.end());
    };
    const auto near = [&](const std::vector<float>& found, const std::vector<double>& expected,
                          const char* which) {
      expect_near(found, Values(expected.begin(), expected.end()), 1e-6, what + ": " + which);
    };
    near(floats(many.y), one.y, "y");
    near(floats(many.dx), one.dx, "dx");
    near(many.dweight, {one.dweight.begin(), one.dweight.end()}, "dW");
  }
}

INSTANTIATE_TEST_SUITE_P(All, Fp8Ranks,
                         testing::Combine(testing::Values(Fp8Recipe::kTensor, Fp8Recipe::kBlock),
                                          testing::Values(2, 3)));

}  // namespace
}  // namespace trireme
