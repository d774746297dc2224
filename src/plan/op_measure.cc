#include "plan/op_measure.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/trace.h"
#include "kernels/attention/attention.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_quantized.h"
#include "kernels/norm/norm.h"
#include "kernels/quantize/quantize.h"
#include "tensor/buffer.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

/// A repetition is of at least so many operations or bytes, a millisecond or so: neither clock nor
/// meeting shows, and what else the machine does seldom falls into all of them.
constexpr double kFlopsTimed = 5e7, kGpuFlopsTimed = 2e11, kBytesTimed = 1.6e7;
/// Longer work is repeated less.
constexpr double kRepetitionsMin = 6, kRepetitionsMax = 24;
constexpr double kPassBytesMin = 1 << 16, kPassBytesStep = 4;
/// Whole, half, a quarter.
constexpr std::int64_t kParts[] = {1, 2, 4};

double real(std::int64_t value) { return static_cast<double>(value); }
double flops_of(const ProductShape& shape) {
  return 2 * real(shape.m) * real(shape.n) * real(shape.k);
}

/// The list of products, each once.
class ProductList {
 public:
  explicit ProductList(double flops_max) : flops_max_(flops_max) {}
  void add(ProductShape shape) {
    if (std::min({shape.m, shape.n, shape.k}) <= 0) return;
    while (flops_of(shape) > flops_max_) {
      std::int64_t& wider = shape.m >= shape.n ? shape.m : shape.n;
      std::int64_t& longest = wider >= shape.k ? wider : shape.k;
      longest = (longest + 1) / 2;
    }
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
  }
  /// Of a linear with weights [n, k].
  void add_linear(std::int64_t rows, std::int64_t n, std::int64_t k) {
    add({rows, n, k, ProductUse::kForward});
    add({rows, k, n, ProductUse::kInput});
    add({n, k, rows, ProductUse::kWeight});
  }
  std::vector<ProductShape> shapes;

 private:
  const double flops_max_;
};

void add_layer(ProductList& list, const LayerConfig& layer, std::int64_t hidden, std::int64_t rows,
               std::int64_t tensor) {
  const AttentionConfig& attention = layer.attention;
  if (attention.heads % tensor != 0) return;
  const std::int64_t kv_heads = std::max<std::int64_t>(1, attention.kv_heads / tensor);
  const std::int64_t in = attention.latent
                              ? attention.in_size()
                              : (attention.heads / tensor + 2 * kv_heads) * attention.head_dim;
  list.add_linear(rows, in, hidden);
  list.add_linear(rows, hidden, attention.out_size() / tensor);
  list.add_linear(rows, layer.mlp.up_size() / tensor, hidden);
  list.add_linear(rows, hidden, layer.mlp.ffn / tensor);
  if (!layer.experts) return;
  const std::int64_t chosen = layer.experts->chosen, ffn = layer.experts->ffn;
  const std::int64_t each = std::max<std::int64_t>(1, rows * chosen / layer.experts->count);
  list.add_linear(each, 2 * ffn / tensor, hidden);
  list.add_linear(each, hidden, ffn / tensor);
}

/// Ordinary numbers: zeros and subnormals run at other speeds, and cost a GPU less power.
Buffer filled(Context& context, DType dtype, const Shape& shape) {
  Buffer buffer(dtype, shape);
  constexpr std::int64_t kPattern = 251;
  const std::int64_t count = shape.count();
  for (std::int64_t i = 0; i < std::min(count, kPattern); ++i) {
    const float value = 0.5F + static_cast<float>(i) / 512;
    if (dtype == DType::kF32) buffer.view().as<float>()[i] = value;
    if (dtype == DType::kBF16) buffer.view().as<BFloat16>()[i] = to_bfloat16(value);
  }
  std::byte* const bytes = buffer.view().data;
  for (std::size_t done = kPattern * size_of(dtype); done < buffer.bytes(); done *= 2)
    std::memcpy(bytes + done, bytes, std::min(done, buffer.bytes() - done));
  if (!context.on_gpu()) return buffer;
  Buffer copy(dtype, shape, context.device());
  copy_in(context, copy.view(), {bytes, buffer.bytes()});
  return copy;
}

Buffer cleared(Context& context, DType dtype, const Shape& shape) {
  return Buffer(dtype, shape, context.device());
}

/// `work` and `enough` in operations or bytes.
Repeats repeats_of(double work, double enough) {
  const double times = std::max(1.0, std::floor(enough / work));
  const double repetitions =
      std::clamp(kRepetitionsMax * enough / (work * times), kRepetitionsMin, kRepetitionsMax);
  return {static_cast<std::int64_t>(times), static_cast<std::int64_t>(repetitions)};
}

double product_seconds(const Measurement& measurement, const ProductShape& shape, DType type) {
  Context& context = measurement.context;
  const bool weight = shape.use == ProductUse::kWeight;
  const Shape of_a = weight ? Shape{shape.k, shape.m} : Shape{shape.m, shape.k};
  const Shape of_b =
      shape.use == ProductUse::kForward ? Shape{shape.n, shape.k} : Shape{shape.k, shape.n};
  const Buffer a = filled(context, type, of_a), b = filled(context, type, of_b);
  const Buffer c = cleared(context, weight ? DType::kF32 : type, {shape.m, shape.n});
  Gemm args;
  args.c_MN = c.view();
  args.a = a.view();
  args.b = b.view();
  args.transpose_a = weight ? Transpose::kYes : Transpose::kNo;
  args.transpose_b = shape.use == ProductUse::kForward ? Transpose::kYes : Transpose::kNo;
  args.accumulate = weight ? Accumulate::kYes : Accumulate::kNo;
  const double enough = context.on_gpu() ? kGpuFlopsTimed : kFlopsTimed;
  return seconds_of(measurement, repeats_of(flops_of(shape), enough), [&] { gemm(context, args); });
}

/// Operands with one scale each; sides are brought to what the kernels take.
double fp8_product_seconds(const Measurement& measurement, const ProductShape& shape) {
  Context& context = measurement.context;
  struct Operand {
    Buffer codes, scale;
    ConstQuantizedView view;
  };
  const auto quantised = [&](std::int64_t rows, std::int64_t columns) {
    const Buffer values = filled(context, DType::kBF16, {rows, columns});
    Operand operand{Buffer(DType::kF8E4M3, {rows, columns}, context.device()),
                    Buffer(DType::kF32, {1, 1}, context.device()),
                    {}};
    Quantize args;
    args.out = {operand.codes.view(), operand.scale.view(), ScaleDim(rows, 0), ScaleDim(columns, 0),
                true};
    args.x = values.view();
    quantize(context, args);
    context.synchronize();
    operand.view = args.out;
    return operand;
  };
  const Operand a = quantised(shape.m, shape.k), b = quantised(shape.n, shape.k);
  const Buffer c = cleared(context, DType::kBF16, {shape.m, shape.n});
  QuantizedGemm args;
  args.c_MN = c.view();
  args.a = a.view;
  args.b = b.view;
  return seconds_of(measurement, repeats_of(flops_of(shape), kGpuFlopsTimed),
                    [&] { gemm_quantized(context, args); });
}

constexpr std::int64_t kFp8Multiple = 16;
bool fp8_takes(const ProductShape& shape) {
  return shape.n % kFp8Multiple == 0 && shape.k % kFp8Multiple == 0;
}

}  // namespace

std::vector<ProductShape> products_to_measure(const ModelConfig& model, std::int64_t rows,
                                              double flops_max) {
  ProductList list(flops_max);
  std::vector<const LayerConfig*> kinds;
  for (const LayerConfig& layer : model.layers) {
    const auto same = [&](const LayerConfig* other) { return *other == layer; };
    if (std::none_of(kinds.begin(), kinds.end(), same)) kinds.push_back(&layer);
  }
  for (const std::int64_t part : kParts) {
    const std::int64_t fewer = std::max<std::int64_t>(1, rows / part);
    for (const LayerConfig* layer : kinds) {
      add_layer(list, *layer, model.hidden, fewer, 1);
      add_layer(list, *layer, model.hidden, rows, part);
    }
    list.add_linear(fewer, model.vocab_size, model.hidden);
    list.add_linear(rows, (model.vocab_size + part - 1) / part, model.hidden);
  }
  for (const std::int64_t m : {64, 512, 2048})
    for (const std::int64_t n : {256, 2048})
      for (const std::int64_t k : {256, 2048}) list.add({m, n, k});
  return list.shapes;
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double seconds_of(const Measurement& measurement, const Repeats& repeats,
                  const std::function<void()>& work) {
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < repeats.repetitions; ++i) {
    measurement.together();
    const std::int64_t begin_ns = steady_now_ns();
    for (std::int64_t j = 0; j < repeats.times; ++j) work();
    measurement.context.synchronize();
    measurement.together();
    seconds.push_back(static_cast<double>(steady_now_ns() - begin_ns) * 1e-9);
  }
  return median_of(std::move(seconds)) / real(repeats.times);
}

std::vector<ProductSeconds> measure_products(const Measurement& measurement,
                                             const std::vector<ProductShape>& shapes, DType type) {
  struct Entry {
    ProductSeconds mean;
    double count = 0;
  };
  std::vector<Entry> entries;
  for (const ProductShape& shape : shapes) {
    if (is_fp8(type) && !fp8_takes(shape)) continue;
    const double seconds = is_fp8(type) ? fp8_product_seconds(measurement, shape)
                                        : product_seconds(measurement, shape, type);
    auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) {
      return entry.mean.m == shape.m && entry.mean.n == shape.n && entry.mean.k == shape.k;
    });
    if (found == entries.end())
      found = entries.insert(found, {{shape.m, shape.n, shape.k, type, 0}, 0});
    found->mean.seconds += (seconds - found->mean.seconds) / ++found->count;
  }
  std::vector<ProductSeconds> measured;
  for (const Entry& entry : entries) measured.push_back(entry.mean);
  return measured;
}

std::vector<MemorySeconds> measure_passes(const Measurement& measurement, std::int64_t columns,
                                          DType type, std::int64_t bytes_max) {
  Context& context = measurement.context;
  const double row_bytes = 4 * real(columns) * real(static_cast<std::int64_t>(size_of(type)));
  const auto rows_of = [&](double bytes) {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes / row_bytes));
  };
  const std::int64_t most = rows_of(real(bytes_max));
  const Buffer x = filled(context, type, {most, columns});
  const Buffer residual = filled(context, type, {most, columns});
  const Buffer sum = cleared(context, type, {most, columns});
  const Buffer y = cleared(context, type, {most, columns});
  const Buffer weight = filled(context, type, {columns});
  const Buffer rstd = cleared(context, DType::kF32, {most});
  std::vector<MemorySeconds> measured;
  for (double bytes = kPassBytesMin;; bytes *= kPassBytesStep) {
    const std::int64_t rows = std::min(most, rows_of(bytes));
    NormForward args;
    args.y_TC = y.view().rows(0, rows);
    args.sum_TC = sum.view().rows(0, rows);
    args.rstd_T = rstd.view().rows(0, rows);
    args.x_TC = x.view().rows(0, rows);
    args.residual_TC = residual.view().rows(0, rows);
    args.weight_C = weight.view();
    const double moved = row_bytes * real(rows);
    measured.push_back({moved, seconds_of(measurement, repeats_of(moved, kBytesTimed),
                                          [&] { norm_forward(context, args); })});
    if (rows == most) return measured;
  }
}

double measure_attention(const Measurement& measurement, const AttentionConfig& attention,
                         std::int64_t tokens, DType type) {
  Context& context = measurement.context;
  const std::int64_t q_size = attention.q_size(), k_size = attention.k_size(),
                     v_size = attention.v_size(), o_size = attention.out_size();
  const auto heads = [&](const Buffer& buffer, std::int64_t count) {
    return heads_of(buffer.view(), 0, count, buffer.view().shape[1] / count);
  };
  const Buffer q = filled(context, type, {tokens, q_size}),
               k = filled(context, type, {tokens, k_size});
  const Buffer v = filled(context, type, {tokens, v_size}),
               d_o = filled(context, type, {tokens, o_size});
  const Buffer o = cleared(context, type, {tokens, o_size});
  const Buffer lse = cleared(context, DType::kF32, {tokens, attention.heads});
  const Buffer delta = cleared(context, DType::kF32, {tokens, attention.heads});
  const Buffer dq = cleared(context, DType::kF32, {tokens, q_size});
  const Buffer dk = cleared(context, DType::kF32, {tokens, k_size});
  const Buffer dv = cleared(context, DType::kF32, {tokens, v_size});
  const PositionRange all{0, tokens};
  AttentionMask mask;
  mask.q = mask.kv = {&all, 1};
  mask.window = attention.window;
  const auto scale = static_cast<float>(1 / std::sqrt(real(attention.head_dim)));
  AttentionForward forward{heads(o, attention.heads),
                           lse.view(),
                           heads(q, attention.heads),
                           heads(k, attention.kv_heads),
                           heads(v, attention.kv_heads),
                           mask,
                           scale};
  AttentionBackward backward;
  backward.dq = heads(dq, attention.heads);
  backward.dk = heads(dk, attention.kv_heads);
  backward.dv = heads(dv, attention.kv_heads);
  backward.d_o = heads(d_o, attention.heads);
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  backward.lse_TH = lse.view();
  backward.delta_TH = delta.view();
  backward.mask = mask;
  backward.scale = scale;
  const double seen = real(attention.seen(tokens));
  const double flops = real(8 * q_size + 6 * o_size) * (seen * real(tokens) - seen * seen / 2);
  const double enough = context.on_gpu() ? kGpuFlopsTimed : kFlopsTimed;
  return flops / seconds_of(measurement, repeats_of(flops, enough), [&] {
           attention_forward(context, forward);
           attention_delta(context, delta.view(), backward.d_o, forward.o);
           attention_backward(context, backward);
         });
}

}  // namespace trireme
