// A linear layer's products of fp8 operands beside loops over the values that the codes stand for.
#include "model/fp8_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "config/model_parse.h"
#include "model/branch.h"
#include "model/model_ranks.h"
#include "store/quantized_refresh.h"
#include "support/program_device.h"
#include "support/store_contents.h"
#include "tensor/buffer.h"

namespace trireme {
namespace {

using reference::Values;

// One block and a part of a second in every dim: 141 tokens, 144 columns, 208 of the MLP.
constexpr std::int64_t kTokens = 141, kHidden = 144, kFfn = 208, kKv = 48, kBlock = 128;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
float bf16_of(double value) { return bf16_value(bf16_bits(static_cast<float>(value))); }

/// The block of each index of a dim: of parts one after the other, in blocks of `block` (0: whole).
std::vector<std::int64_t> blocks(const std::vector<std::int64_t>& parts, std::int64_t block) {
  std::vector<std::int64_t> of;
  std::int64_t first = 0;
  for (const std::int64_t size : parts) {
    for (std::int64_t i = 0; i < size; ++i) of.push_back(first + (block == 0 ? 0 : i / block));
    first = of.back() + 1;
  }
  return of;
}

struct Format {
  double largest, least_normal;
  int fraction_bits;
};
Format format_of(DType dtype) {
  if (dtype == DType::kF8E4M3) return {448, std::ldexp(1, -6), 3};
  return {57344, std::ldexp(1, -14), 2};
}

/// The nearest value of a format, ties to even; the largest where it is beyond.
double nearest(double value, const Format& format) {
  const double magnitude = std::max(std::abs(value), format.least_normal);
  const double step = std::ldexp(1, std::ilogb(magnitude) - format.fraction_bits);
  return std::clamp(std::nearbyint(value / step) * step, -format.largest, format.largest);
}

/// Values of the codes of x [rows.size(), columns.size()], with a scale for each pair of blocks.
Values quantised(const Values& x, const std::vector<std::int64_t>& rows,
                 const std::vector<std::int64_t>& columns, DType dtype) {
  const Format format = format_of(dtype);
  const std::int64_t width = columns.back() + 1;
  std::vector<float> most(at((rows.back() + 1) * width));
  const auto block_of = [&](std::size_t i) {
    return at(rows[i / columns.size()] * width + columns[i % columns.size()]);
  };
  for (std::size_t i = 0; i < x.size(); ++i)
    most[block_of(i)] = std::max(most[block_of(i)], std::abs(static_cast<float>(x[i])));
  Values values;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float amax = most[block_of(i)];
    const float scale = amax == 0 ? 1 : static_cast<float>(format.largest) / amax;
    const float scaled = static_cast<float>(x[i]) * scale;
    values.push_back(nearest(scaled, format) * static_cast<double>(1 / scale));
  }
  return values;
}

/// Bf16 numbers of which some rows are larger, some columns are, and two rows and a block of one
/// are zero.
Values uneven(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  Values values = numbers(at(rows * columns), seed, 1);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      double& value = values[at(r * columns + c)];
      value = std::ldexp(value, static_cast<int>(r % 5 + (c >= kBlock ? 2 : 0) - c % 3));
      if (r == 3 || r == 130 || (r == 7 && c < kBlock)) value = 0;
    }
  }
  return values;
}

/// Attention's or the MLP's first or last product of a layer.
struct Layer {
  std::string name;
  bool gpt2, attention, first;
  std::vector<std::int64_t> out;  ///< its projections
  std::int64_t in;
};
const std::vector<Layer>& layers() {
  static const std::vector<Layer> all = {
      {"llama_qkv", false, true, true, {kHidden, kKv, kKv}, kHidden},
      {"llama_gate_up", false, false, true, {kFfn, kFfn}, kHidden},
      {"llama_down", false, false, false, {kHidden}, kFfn},
      {"gpt2_qkv", true, true, true, {kHidden, kHidden, kHidden}, kHidden},
      {"gpt2_up", true, false, true, {kFfn}, kHidden},
      {"gpt2_down", true, false, false, {kHidden}, kFfn}};
  return all;
}

ModelConfig config_of(bool gpt2) {
  const std::string keys =
      gpt2 ? R"("model_type": "gpt2", "n_embd": 144, "n_layer": 1, "n_head": 3, "n_inner": 208,
                "n_positions": 16, "vocab_size": 16)"
           : R"("model_type": "llama", "hidden_size": 144, "num_hidden_layers": 1,
                "intermediate_size": 208, "num_attention_heads": 3, "num_key_value_heads": 1,
                "max_position_embeddings": 16, "vocab_size": 16, "attention_bias": true,
                "mlp_bias": true)";
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  ModelConfig config = read_model(parse_json("{" + keys + "}", "fp8_linear"), problems, notes);
  expect(problems.empty(), "a model that is refused");
  return config;
}

ModelParams params_of(const ModelConfig& config, const Fp8Precision& precision) {
  ModelParams params = declare_params(config);
  declare_fp8(params, config, precision, {});
  return params;
}

/// || actual - expected || / || expected ||
double distance(const std::vector<float>& actual, const Values& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double difference = 0, all = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    difference += std::pow(static_cast<double>(actual[i]) - expected[i], 2);
    all += std::pow(expected[i], 2);
  }
  return std::isnan(difference) || all == 0 ? INFINITY : std::sqrt(difference / all);
}

/// Of results in bf16: sums in fp32 round otherwise now and then. Codes that are not the nearest,
/// and scales of other blocks, are a hundred times as far.
constexpr double kRounded = 5e-4;
constexpr double kSums = 2e-6;  ///< of results in fp32

constexpr DType kGradients[] = {DType::kF8E5M2, DType::kF8E4M3};

double gelu(double v) {
  return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
}

/// Each layer with one to three threads.
class Fp8Linear : public testing::TestWithParam<std::tuple<std::size_t, Fp8Recipe>> {
 protected:
  Fp8Linear()
      : layer_(layers()[std::get<0>(GetParam())]),
        recipe_(std::get<1>(GetParam())),
        config_(config_of(layer_.gpt2)),
        params_(params_of(config_, {recipe_})),
        context_(program_device(), 1 + static_cast<int>(std::get<0>(GetParam()) % 3), detect_isa()),
        store_(params_.metas, DType::kBF16, kTrainingStore, context_.device()) {}

  void SetUp() override {
    if (program_device().kind == DeviceKind::kCuda) GTEST_SKIP() << "a CPU's products";
    load_weights();
    const Fp8Widths widths{kTokens, in(), 3 * std::max(out(), kFfn * 2), 1, true};
    ArenaCursor measure;
    lay_out_fp8(measure, {widths});
    memory_ =
        Buffer(DType::kF8E4M3, {static_cast<std::int64_t>(measure.bytes())}, context_.device());
    ArenaCursor arena(memory_.view().data);
    scratch_ = lay_out_fp8(arena, {widths});
    x_ = uneven(kTokens, in(), 1);
    dy_ = uneven(kTokens, out(), 2);
  }

  /// fp32 values that are no bf16, the projections of one product of other sizes.
  void load_weights() {
    for (ParamIndex i = linear().weight.first; i <= linear().weight.last; ++i) {
      const std::int64_t rows = params_.metas[at(i)].shape[0];
      Values values = uneven(rows, params_.metas[at(i)].shape[1], 10 + static_cast<unsigned>(i));
      for (std::size_t j = 0; j < values.size(); ++j) {
        values[j] *= (1 + 1e-4 * static_cast<double>(j % 31)) * (1 + i - linear().weight.first);
        values[j] = static_cast<float>(values[j]);
      }
      write(context_, store_.value(i), values);
      stored_.insert(stored_.end(), values.begin(), values.end());
    }
    for (ParamIndex i = linear().bias.first; i <= linear().bias.last; ++i) {
      const Values values = numbers(at(store_.value(i).count()), 50 + static_cast<unsigned>(i), 3);
      write(context_, store_.value(i), values);
      bias_.insert(bias_.end(), values.begin(), values.end());
    }
    quantise_weights();
  }
  void quantise_weights() {
    const auto alone = make_self_communicator();
    QuantizedRefresh(context_, store_, *alone, *alone).run();
    store_.refresh_copies(context_);
  }

  [[nodiscard]] const LinearParams& linear() const {
    const BlockParams& block = params_.chunks.front().blocks.front();
    const BranchParams& branch =
        layer_.attention ? static_cast<const BranchParams&>(block.attention) : block.mlp;
    return layer_.first ? branch.in : branch.out;
  }
  [[nodiscard]] std::int64_t in() const { return layer_.in; }
  [[nodiscard]] std::int64_t out() const {
    return std::accumulate(layer_.out.begin(), layer_.out.end(), std::int64_t{0});
  }
  [[nodiscard]] Fp8Products products(DType gradients = kGradients[0]) {
    precision_ = {recipe_, gradients};
    return {context_, alone_, precision_, scratch_};
  }

  Buffer tensor(DType dtype, Shape shape, const Values& values) {
    Buffer buffer(dtype, shape, context_.device());
    write(context_, buffer.view(), values);
    return buffer;
  }
  Buffer zeros(DType dtype, Shape shape) { return {dtype, shape, context_.device()}; }
  std::vector<float> found(const Buffer& buffer) { return read(context_, buffer.view()); }

  [[nodiscard]] LinearGradients gradients_in(const Buffer& dw) const {
    return {{dw.view(), Accumulate::kNo}, {}, layer_.gpt2, &*linear().fp8};
  }

  // ---- what is expected

  [[nodiscard]] static bool in_blocks(Fp8Recipe recipe) { return recipe == Fp8Recipe::kBlock; }
  /// W [out, in] in the values that its codes stand for.
  [[nodiscard]] Values weight(Fp8Recipe recipe) const {
    const std::int64_t block = in_blocks(recipe) ? kBlock : 0;
    const auto of_out = blocks(layer_.out, block), of_in = blocks({in()}, block);
    if (!layer_.gpt2) return quantised(stored_, of_out, of_in, DType::kF8E4M3);
    const Values turned = quantised(stored_, of_in, of_out, DType::kF8E4M3);
    Values values(turned.size());
    for (std::int64_t i = 0; i < in(); ++i) {
      for (std::int64_t o = 0; o < out(); ++o) values[at(o * in() + i)] = turned[at(i * out() + o)];
    }
    return values;
  }
  /// A matrix of tokens as it is multiplied along its columns, or along its rows.
  [[nodiscard]] static Values along_columns(const Values& x, const std::vector<std::int64_t>& parts,
                                            Fp8Recipe recipe, DType format) {
    return quantised(x, blocks({kTokens}, in_blocks(recipe) ? 1 : 0),
                     blocks(parts, in_blocks(recipe) ? kBlock : 0), format);
  }
  [[nodiscard]] static Values along_rows(const Values& x, const std::vector<std::int64_t>& parts,
                                         Fp8Recipe recipe, DType format) {
    return quantised(x, blocks({kTokens}, in_blocks(recipe) ? kBlock : 0),
                     blocks(parts, in_blocks(recipe) ? 1 : 0), format);
  }
  /// x W^T (+ b) and dy W, rounded to bf16.
  [[nodiscard]] Values forward(Fp8Recipe recipe, bool bias) const {
    const Values x = along_columns(x_, {in()}, recipe, DType::kF8E4M3), w = weight(recipe);
    Values y;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t o = 0; o < out(); ++o) {
        double sum = bias ? bias_[at(o)] : 0;
        for (std::int64_t i = 0; i < in(); ++i) sum += x[at(t * in() + i)] * w[at(o * in() + i)];
        y.push_back(bf16_of(sum));
      }
    }
    return y;
  }
  [[nodiscard]] Values backward_input(Fp8Recipe recipe, DType format) const {
    const Values dy = along_columns(dy_, layer_.out, recipe, format), w = weight(recipe);
    Values dx(at(kTokens * in()));
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t o = 0; o < out(); ++o) {
        const double d = dy[at(t * out() + o)];
        for (std::int64_t i = 0; i < in(); ++i) dx[at(t * in() + i)] += d * w[at(o * in() + i)];
      }
    }
    for (double& value : dx) value = bf16_of(value);
    return dx;
  }
  /// In the weight's own order, added to `before`.
  [[nodiscard]] Values backward_weight(Fp8Recipe recipe, DType format, Values before) const {
    const Values dy = along_rows(dy_, layer_.out, recipe, format),
                 x = along_rows(x_, {in()}, recipe, DType::kF8E4M3);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t o = 0; o < out(); ++o) {
        const double d = dy[at(t * out() + o)];
        for (std::int64_t i = 0; i < in(); ++i)
          before[at(layer_.gpt2 ? i * out() + o : o * in() + i)] += d * x[at(t * in() + i)];
      }
    }
    return before;
  }
  [[nodiscard]] Fp8Recipe other_recipe() const {
    return in_blocks(recipe_) ? Fp8Recipe::kTensor : Fp8Recipe::kBlock;
  }
  static DType other(DType format) {
    return format == DType::kF8E4M3 ? DType::kF8E5M2 : DType::kF8E4M3;
  }

  const Layer layer_;
  const Fp8Recipe recipe_;
  const ModelConfig config_;
  const ModelParams params_;
  Context context_;
  ParamStore store_;
  TensorAxis alone_;
  Fp8Precision precision_;
  Buffer memory_;
  Fp8Scratch scratch_;
  Values stored_, bias_, x_, dy_;  // weights in the store's order
};

INSTANTIATE_TEST_SUITE_P(all, Fp8Linear,
                         testing::Combine(testing::Range<std::size_t>(0, 6),
                                          testing::Values(Fp8Recipe::kTensor, Fp8Recipe::kBlock)),
                         [](const auto& param) {
                           return layers()[std::get<0>(param.param)].name +
                                  (std::get<1>(param.param) == Fp8Recipe::kBlock ? "_block"
                                                                                 : "_tensor");
                         });

TEST_P(Fp8Linear, forward_is_the_product_of_what_codes_stand_for) {
  const Buffer x = tensor(DType::kBF16, {kTokens, in()}, x_);
  const ParamStore::Lease lease = store_.acquire(1);
  for (const bool bias : {true, false}) {
    LinearWeights weights = weights_of(lease, linear());
    ASSERT_TRUE(weights.fp8 != nullptr && weights.bias.given());
    if (!bias) weights.bias = {};
    const Buffer y = zeros(DType::kBF16, {kTokens, out()});
    products().forward(y.view(), x.view(), weights, {});
    EXPECT_LE(distance(found(y), forward(recipe_, bias)), kRounded);
    EXPECT_GT(distance(found(y), forward(other_recipe(), bias)), 20 * kRounded);
  }
}

TEST_P(Fp8Linear, what_a_norm_leaves_gives_the_bits_of_its_rows) {
  const Buffer s = tensor(DType::kBF16, {kTokens, in()}, x_), rstd = zeros(DType::kF32, {kTokens}),
               weight = tensor(DType::kBF16, {in()}, numbers(at(in()), 3, 1)),
               n = zeros(DType::kBF16, s.view().shape), left = zeros(DType::kBF16, s.view().shape),
               y = zeros(DType::kBF16, {kTokens, out()}),
               again = zeros(DType::kBF16, {kTokens, out()});
  const Buffer amax = zeros(DType::kI32, {1});
  const ParamStore::Lease lease = store_.acquire(1);
  LinearWeights weights = weights_of(lease, linear());
  const auto forward_from = [&](const Buffer& to, const NormedRows& rows) {
    NormForward norm;
    norm.x_TC = s.view();
    norm.weight_C = weight.view();
    norm.rstd_T = rstd.view();
    norm_forward(context_, making(rows, alone_, norm));
    products().forward_gathered(to.view(), rows, weights, {});
  };
  forward_from(y, {n.view()});
  if (!in_blocks(recipe_)) weights.x_amax_1 = amax.view();
  const NormedRows rows = products().normed_rows(left.view(), weights);
  EXPECT_EQ(rows.quantized.codes.given(), in_blocks(recipe_));
  EXPECT_EQ(rows.quantized.amax_P.given(), !in_blocks(recipe_));
  forward_from(again, rows);
  EXPECT_EQ(found(again), found(y));
}

TEST_P(Fp8Linear, codes_that_what_makes_an_operand_leaves_give_the_bits_of_its_rows) {
  const Buffer x = tensor(DType::kBF16, {kTokens, in()}, x_),
               dy = tensor(DType::kBF16, {kTokens, out()}, dy_);
  const Buffer y[] = {zeros(DType::kBF16, dy.view().shape), zeros(DType::kBF16, dy.view().shape)},
               dx[] = {zeros(DType::kBF16, x.view().shape), zeros(DType::kBF16, x.view().shape)};
  const ParamStore::Lease lease = store_.acquire(1);
  const LinearWeights weights = weights_of(lease, linear());
  const Fp8Products of = products();
  const Shape shape = layer_.gpt2 ? Shape{in(), out()} : Shape{out(), in()};
  const Buffer dw[] = {zeros(DType::kF32, shape), zeros(DType::kF32, shape)};
  const LinearGradients gradients[] = {gradients_in(dw[0]), gradients_in(dw[1])};
  const QuantizedView input = of.input_codes(kTokens, weights);
  const BothOrders codes = of.gradient_codes(kTokens, gradients[1]);
  ASSERT_TRUE(input.given() == in_blocks(recipe_) && codes.given() == in_blocks(recipe_));
  if (!in_blocks(recipe_)) return;
  of.forward(y[0].view(), x.view(), weights, {});
  quantize(context_, {input, x.view()});
  of.forward(y[1].view(), input, weights, {});
  EXPECT_EQ(found(y[1]), found(y[0]));

  of.backward_both(dx[0].view(), dy.view(), weights, {}, gradients[0], [&] { return x.view(); });
  quantize_both(context_, {codes.along, codes.across, dy.view()});
  of.backward_input(dx[1].view(), codes, weights);
  EXPECT_EQ(found(dx[1]), found(dx[0]));
  of.backward_weight(gradients[1], codes, x.view());
  EXPECT_EQ(found(dw[1]), found(dw[0]));

  // x comes behind dx, and what is kept in the beginning stays.
  const auto kept = [&] {
    return std::vector<std::byte>(codes.across.codes.data, codes.along.scales.data);
  };
  const auto before = kept();
  write(context_, dw[1].view(), Values(at(in() * out())));
  of.backward_both_making(dx[1].view(), dy.view(), weights, gradients[1], codes,
                          [&](const QuantizedView& turned) {
                            quantize(context_, {turned, x.view(), {}, Transpose::kYes});
                          });
  EXPECT_EQ(found(dw[1]), found(dw[0]));
  EXPECT_EQ(kept(), before);
}

TEST_P(Fp8Linear, the_largest_magnitude_that_forward_has_kept_changes_no_bit_of_a_gradient) {
  if (in_blocks(recipe_)) GTEST_SKIP() << "W has other blocks than forward";
  const Buffer x = tensor(DType::kBF16, {kTokens, in()}, x_),
               dy = tensor(DType::kBF16, {kTokens, out()}, dy_), amax = zeros(DType::kI32, {1});
  const Shape shape = layer_.gpt2 ? Shape{in(), out()} : Shape{out(), in()};
  const Buffer alone = zeros(DType::kF32, shape), kept = zeros(DType::kF32, shape);
  const auto backward_to = [&](const Buffer& to, const TensorView& x_amax_1) {
    LinearGradients gradients = gradients_in(to);
    gradients.x_amax_1 = x_amax_1;
    products().backward_weight(gradients, dy.view(), x.view());
  };
  backward_to(alone, {});
  absolute_max(context_, amax.view().reshape({1, 1}), x.view(), ScaleDim(kTokens, 0),
               ScaleDim(in(), 0));
  backward_to(kept, amax.view());
  EXPECT_EQ(found(kept), found(alone));
  const Buffer infinite = tensor(DType::kBF16, {1, 1}, {INFINITY});
  absolute_max(context_, amax.view().reshape({1, 1}), infinite.view(), ScaleDim(1, 0),
               ScaleDim(1, 0));  // no scale is finite
  backward_to(kept, amax.view());
  EXPECT_TRUE(std::isnan(found(kept)[0]));
}

TEST_P(Fp8Linear, an_epilogue_follows_the_rounded_product) {
  const Buffer x = tensor(DType::kBF16, {kTokens, in()}, x_);
  const ParamStore::Lease lease = store_.acquire(1);
  const LinearWeights weights = weights_of(lease, linear());
  const Values product = forward(recipe_, true);
  const auto silu = [](double v) { return v / (1 + std::exp(-v)); };
  const Values residual = numbers(at(kTokens * out()), 7, 40);
  Values added, activated;
  for (std::size_t i = 0; i < product.size(); ++i)
    added.push_back(bf16_of(product[i] + residual[i]));
  const bool gated = layer_.out == std::vector{kFfn, kFfn};
  const std::int64_t width = gated ? kFfn : out();
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t c = 0; c < width; ++c) {
      const double y = product[at(t * out() + c)];
      activated.push_back(bf16_of(gated ? silu(y) * product[at(t * out() + kFfn + c)] : gelu(y)));
    }
  }
  const Buffer y = zeros(DType::kBF16, {kTokens, out()}),
               saved = zeros(DType::kBF16, y.view().shape),
               act = zeros(DType::kBF16, {kTokens, width}),
               operand = tensor(DType::kBF16, y.view().shape, residual);
  std::int64_t rows = 0;
  const auto count_rows = [&](Context&, std::int64_t, std::int64_t count) { rows += count; };
  LinearEpilogue epilogue{GemmEpilogue::kAddResidual, operand.view()};
  epilogue.then = count_rows;
  products().forward(y.view(), x.view(), weights, epilogue);
  EXPECT_LE(distance(found(y), added), kRounded);
  EXPECT_EQ(rows, kTokens);
  products().forward(act.view(), x.view(), weights,
                     {gated ? GemmEpilogue::kSwiglu : GemmEpilogue::kGelu, {}, saved.view()});
  EXPECT_LE(distance(found(saved), product), kRounded);
  EXPECT_LE(distance(found(act), activated), 3 * kRounded);
}

TEST_P(Fp8Linear, backward_input_is_the_product_of_what_codes_stand_for) {
  const Buffer dy = tensor(DType::kBF16, {kTokens, out()}, dy_),
               dx = zeros(DType::kBF16, {kTokens, in()});
  const ParamStore::Lease lease = store_.acquire(1);
  const LinearWeights weights = weights_of(lease, linear());
  for (const DType format : kGradients) {
    products(format).backward_input(dx.view(), dy.view(), weights, {});
    EXPECT_LE(distance(found(dx), backward_input(recipe_, format)), kRounded);
    EXPECT_GT(distance(found(dx), backward_input(recipe_, other(format))), 20 * kRounded);
    EXPECT_GT(distance(found(dx), backward_input(other_recipe(), format)), 20 * kRounded);
  }
}

TEST_P(Fp8Linear, weights_that_have_changed_are_read_anew) {
  const Buffer x = tensor(DType::kBF16, {kTokens, in()}, x_),
               dy = tensor(DType::kBF16, {kTokens, out()}, dy_),
               y = zeros(DType::kBF16, {kTokens, out()}), dx = zeros(DType::kBF16, {kTokens, in()});
  const auto multiply = [&] {
    const ParamStore::Lease lease = store_.acquire(1);
    const LinearWeights weights = weights_of(lease, linear());
    products().forward(y.view(), x.view(), weights, {});
    products().backward_input(dx.view(), dy.view(), weights, {});
  };
  multiply();
  std::reverse(stored_.begin(), stored_.end());
  auto from = stored_.begin();
  for (ParamIndex i = linear().weight.first; i <= linear().weight.last; ++i) {
    const auto to = from + store_.value(i).count();
    write(context_, store_.value(i), Values(from, to));
    from = to;
  }
  quantise_weights();
  multiply();
  EXPECT_LE(distance(found(y), forward(recipe_, true)), kRounded);
  EXPECT_LE(distance(found(dx), backward_input(recipe_, kGradients[0])), kRounded);
}

TEST_P(Fp8Linear, backward_of_an_activation_follows_the_rounded_product) {
  if (layer_.first) GTEST_SKIP() << "of the MLP's last product";
  const Buffer dy = tensor(DType::kBF16, {kTokens, out()}, dy_);
  const ParamStore::Lease lease = store_.acquire(1);
  const DType format = kGradients[0];
  const Values d = backward_input(recipe_, format);
  const std::int64_t width = layer_.gpt2 ? in() : 2 * in();
  const Values before = numbers(at(kTokens * width), 8, 3);
  Values expected(before.size()), remade;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t c = 0; c < in(); ++c) {
      const double g = d[at(t * in() + c)], a = before[at(t * width + c)];
      double& first = expected[at(t * width + c)];
      if (layer_.gpt2) {
        constexpr double kStep = 1e-5;
        first = bf16_of(g * (gelu(a + kStep) - gelu(a - kStep)) / (2 * kStep));
        remade.push_back(bf16_of(gelu(a)));
        continue;
      }
      const double up = before[at(t * width + in() + c)], s = 1 / (1 + std::exp(-a));
      first = bf16_of(g * up * s * (1 + a * (1 - s)));
      expected[at(t * width + in() + c)] = bf16_of(g * a * s);
      remade.push_back(bf16_of(a * s * up));
    }
  }
  const Buffer da = zeros(DType::kBF16, {kTokens, width}),
               saved = zeros(DType::kBF16, {kTokens, in()}),
               operand = tensor(DType::kBF16, da.view().shape, before);
  products(format).backward_input(
      da.view(), dy.view(), weights_of(lease, linear()),
      {layer_.gpt2 ? GemmEpilogue::kGeluBackward : GemmEpilogue::kSwigluBackward, operand.view(),
       saved.view()});
  EXPECT_LE(distance(found(da), expected), 3 * kRounded);
  EXPECT_LE(distance(found(saved), remade), 3 * kRounded);
}

TEST_P(Fp8Linear, backward_weight_sets_or_adds_and_the_bias_is_a_sum_of_dy_itself) {
  const Buffer dy = tensor(DType::kBF16, {kTokens, out()}, dy_),
               x = tensor(DType::kBF16, {kTokens, in()}, x_);
  const Values before = numbers(stored_.size(), 9, 500), bias_before = numbers(bias_.size(), 6, 1);
  Values bias = bias_before;
  for (std::size_t i = 0; i < dy_.size(); ++i) bias[i % bias.size()] += dy_[i];
  for (const DType format : kGradients) {
    for (const Accumulate accumulate : {Accumulate::kNo, Accumulate::kYes}) {
      const auto expected = [&](Fp8Recipe recipe, DType of) {
        return backward_weight(recipe, of,
                               accumulate == Accumulate::kYes ? before : Values(before.size()));
      };
      const Shape shape = layer_.gpt2 ? Shape{in(), out()} : Shape{out(), in()};
      const Buffer dw = tensor(DType::kF32, shape, before),
                   db = tensor(DType::kF32, {out()}, bias_before);
      products(format).backward_weight(
          {{dw.view(), accumulate}, db.view(), layer_.gpt2, &*linear().fp8}, dy.view(), x.view());
      EXPECT_LE(distance(found(dw), expected(recipe_, format)), kSums);
      EXPECT_LE(distance(found(db), bias), kSums);
      EXPECT_GT(distance(found(dw), expected(recipe_, other(format))), 1000 * kSums);
      EXPECT_GT(distance(found(dw), expected(other_recipe(), format)), 1000 * kSums);
    }
  }
}

/// From one reading of dy the bits of two, also where dx gives way to x and nothing but the bias is
/// trained.
TEST_P(Fp8Linear, both_halves_together_are_the_two_apart) {
  const Buffer dy = tensor(DType::kBF16, {kTokens, out()}, dy_),
               x = tensor(DType::kBF16, {kTokens, in()}, x_);
  const ParamStore::Lease lease = store_.acquire(1);
  const LinearWeights weights = weights_of(lease, linear());
  const Shape shape = layer_.gpt2 ? Shape{in(), out()} : Shape{out(), in()};
  const Values before = numbers(stored_.size(), 9, 500);
  for (const bool trained : {true, false}) {
    const Buffer dx[] = {zeros(DType::kBF16, {kTokens, in()}),
                         zeros(DType::kBF16, {kTokens, in()})},
                 dw[] = {tensor(DType::kF32, shape, before), tensor(DType::kF32, shape, before)},
                 db[] = {zeros(DType::kF32, {out()}), zeros(DType::kF32, {out()})};
    const auto gradients = [&](int i) {
      return LinearGradients{{trained ? dw[i].view() : TensorView(), Accumulate::kYes},
                             db[i].view(),
                             layer_.gpt2,
                             &*linear().fp8};
    };
    const Fp8Products of = products();
    of.backward_input(dx[0].view(), dy.view(), weights, {});
    of.backward_weight(gradients(0), dy.view(), x.view());
    std::vector<float> made;
    of.backward_both(dx[1].view(), dy.view(), weights, {}, gradients(1), [&]() -> ConstTensorView {
      made = found(dx[1]);
      write(context_, dx[1].view(), x_);
      return dx[1].view();
    });
    EXPECT_EQ(made, found(dx[0]));
    EXPECT_EQ(found(dw[1]), found(dw[0]));
    EXPECT_EQ(found(db[1]), found(db[0]));
    EXPECT_EQ(found(dw[0]) != read(context_, tensor(DType::kF32, shape, before).view()), trained);
  }
}

}  // namespace
}  // namespace trireme
