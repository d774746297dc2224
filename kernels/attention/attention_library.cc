#include "kernels/attention/attention_library.h"

#include <utility>

namespace trireme {
namespace {

using Dims = std::array<std::int64_t, 4>;
using Kind = GraphOperation::Kind;
using Type = GraphTensor::Type;
using Storage = GraphTensor::Storage;

Dims packed(const Dims& dims) {
  return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
}
/// The last two dims swapped.
Dims transposed(Dims dims) {
  std::swap(dims[2], dims[3]);
  return dims;
}

class Builder {
 public:
  explicit Builder(const AttentionLayout& shape) : shape_(shape) {}

  AttentionGraph forward() {
    const int q = heads(LibraryTensor::kQ, shape_.heads, shape_.q_stride);
    const int k_transposed = transposed_heads(LibraryTensor::kK, shape_.k_stride);
    const int v = heads(LibraryTensor::kV, shape_.kv_heads, shape_.v_stride);
    const int o = heads(LibraryTensor::kO, shape_.heads, shape_.o_stride);
    const int lse = rows(LibraryTensor::kLse);
    const int scores = masked(scaled(product(q, k_transposed, intermediate(square()))));
    const int maximum = apply(Kind::kMaximum, scores, -1, intermediate(column()));
    const int e = apply(Kind::kExp, apply(Kind::kSubtract, scores, maximum, intermediate(square())),
                        -1, intermediate(square()));
    const int sum = apply(Kind::kSum, e, -1, intermediate(column()));
    apply(Kind::kAdd, maximum, apply(Kind::kLog, sum, -1, intermediate(column())), lse);
    // The tensor cores take it in the operands' type.
    product(apply(Kind::kDivide, e, sum, intermediate(square(), Type::kBF16)), v, o);
    return std::move(graph_);
  }

  AttentionGraph backward() {
    const int q = heads(LibraryTensor::kQ, shape_.heads, shape_.q_stride);
    const int k_transposed = transposed_heads(LibraryTensor::kK, shape_.k_stride);
    const int v_transposed = transposed_heads(LibraryTensor::kV, shape_.v_stride);
    const int o = heads(LibraryTensor::kO, shape_.heads, shape_.o_stride);
    const int d_o = heads(LibraryTensor::kDO, shape_.heads, shape_.d_o_stride);
    const int lse = rows(LibraryTensor::kLse);
    const int delta = make_delta(d_o, o);

    const int scores = scaled(product(q, k_transposed, intermediate(square())));
    const int difference = apply(Kind::kSubtract, scores, lse, intermediate(square()));
    const int p = apply(Kind::kExp, masked(difference), -1, intermediate(square()));
    gradient_of_keys(transposed_bf16(p), d_o, LibraryTensor::kDV);

    const int dp = apply(Kind::kSubtract, product(d_o, v_transposed, intermediate(square())), delta,
                         intermediate(square()));
    const int ds = scaled(apply(Kind::kMultiply, dp, p, intermediate(square())));
    gradient_of_keys(transposed_bf16(ds), q, LibraryTensor::kDK);
    gradient_of_queries(ds, k_transposed);
    return std::move(graph_);
  }

 private:
  [[nodiscard]] Dims square() const {
    return {shape_.sequences, shape_.heads, shape_.tokens, shape_.tokens};
  }
  [[nodiscard]] Dims column() const { return {shape_.sequences, shape_.heads, shape_.tokens, 1}; }
  [[nodiscard]] Dims of_heads(std::int64_t heads, std::int64_t dim) const {
    return {shape_.sequences, heads, shape_.tokens, dim};
  }
  /// Of heads in rows, `stride` elements from token to token.
  [[nodiscard]] Dims row_strides(std::int64_t stride, std::int64_t dim) const {
    return {shape_.tokens * stride, dim, stride, 1};
  }
  /// Of a head of q, k or their gradients, or of the others.
  [[nodiscard]] std::int64_t dim_of(LibraryTensor tensor) const {
    const bool of_values = tensor == LibraryTensor::kV || tensor == LibraryTensor::kO ||
                           tensor == LibraryTensor::kDO || tensor == LibraryTensor::kDV;
    return of_values ? shape_.value_dim : shape_.head_dim;
  }

  int add(GraphTensor tensor) {
    graph_.tensors.push_back(tensor);
    return static_cast<int>(graph_.tensors.size()) - 1;
  }
  int outside(LibraryTensor tensor, const Dims& dims, const Dims& strides, Type type) {
    return add({static_cast<std::int64_t>(tensor), dims, strides, type, Storage::kMemory});
  }
  int heads(LibraryTensor tensor, std::int64_t count, std::int64_t stride) {
    const std::int64_t dim = dim_of(tensor);
    return outside(tensor, of_heads(count, dim), row_strides(stride, dim), Type::kBF16);
  }
  /// Keys or values as the right side of a product: [B, G, D, T].
  int transposed_heads(LibraryTensor tensor, std::int64_t stride) {
    const std::int64_t dim = dim_of(tensor);
    return outside(tensor, transposed(of_heads(shape_.kv_heads, dim)),
                   transposed(row_strides(stride, dim)), Type::kBF16);
  }
  int rows(LibraryTensor tensor) { return outside(tensor, column(), packed(column()), Type::kF32); }
  int number(LibraryTensor tensor) {
    for (std::size_t i = 0; i < graph_.tensors.size(); ++i)
      if (graph_.tensors[i].id == static_cast<std::int64_t>(tensor)) return static_cast<int>(i);
    return add({static_cast<std::int64_t>(tensor),
                {1, 1, 1, 1},
                {1, 1, 1, 1},
                Type::kF32,
                Storage::kByValue});
  }
  int intermediate(const Dims& dims, const Dims& strides, Type type) {
    return add({next_id_++, dims, strides, type, Storage::kVirtual});
  }
  int intermediate(const Dims& dims, Type type = Type::kF32) {
    return intermediate(dims, packed(dims), type);
  }

  int apply(Kind kind, int x, int y, int out, int condition = -1) {
    graph_.operations.push_back({kind, x, y, condition, out});
    return out;
  }
  int product(int x, int y, int out) { return apply(Kind::kProduct, x, y, out); }
  int scaled(int x) {
    return apply(Kind::kMultiply, x, number(LibraryTensor::kScale), intermediate(square()));
  }
  /// Where the query's index is below the key's: minus infinity.
  int masked(int x) {
    const int row = apply(Kind::kRowIndex, x, -1, intermediate(square(), Type::kI32));
    const int col = apply(Kind::kColumnIndex, x, -1, intermediate(square(), Type::kI32));
    const int seen = apply(Kind::kNotBelow, row, col, intermediate(square(), Type::kBool));
    return apply(Kind::kSelect, x, number(LibraryTensor::kMinusInfinity), intermediate(square()),
                 seen);
  }
  /// delta = sum_d dO O, which the library keeps in memory between two of its kernels.
  int make_delta(int d_o, int o) {
    const Dims dims = of_heads(shape_.heads, shape_.value_dim);
    const int products = apply(Kind::kMultiply, d_o, o, intermediate(dims));
    const int sum = apply(Kind::kSum, products, -1, intermediate(column()));
    return apply(Kind::kMultiply, sum, number(LibraryTensor::kOne), rows(LibraryTensor::kDelta));
  }
  int transposed_bf16(int x) {
    return apply(Kind::kView, x, -1,
                 intermediate(transposed(square()), transposed(packed(square())), Type::kBF16));
  }
  int gradient(LibraryTensor tensor, std::int64_t count) {
    const std::int64_t packed_stride = count * dim_of(tensor);
    return heads(tensor, count, shape_.written_stride == 0 ? packed_stride : shape_.written_stride);
  }
  /// sum over queries of weights^T x, and over the query heads of a key head.
  void gradient_of_keys(int weights_transposed, int x, LibraryTensor result) {
    const int out = gradient(result, shape_.kv_heads);
    if (shape_.heads == shape_.kv_heads) {
      product(weights_transposed, x, out);
      return;
    }
    const int by_head = product(weights_transposed, x,
                                intermediate(of_heads(shape_.heads, dim_of(result)), Type::kBF16));
    apply(Kind::kSum, by_head, -1, out);
  }
  /// dq = dS k: at once, or where it may be added to in any order, in fp32 and then rounded.
  void gradient_of_queries(int ds, int k_transposed) {
    const GraphTensor& transposed_k = graph_.tensors[static_cast<std::size_t>(k_transposed)];
    const Dims dims = transposed(transposed_k.dims), strides = transposed(transposed_k.strides);
    const int k = apply(Kind::kView, k_transposed, -1, intermediate(dims, strides, Type::kBF16));
    const int dq = gradient(LibraryTensor::kDQ, shape_.heads);
    if (shape_.deterministic) {
      product(ds, k, dq);
      return;
    }
    const Dims all = of_heads(shape_.heads, shape_.head_dim);
    const int sum = outside(LibraryTensor::kDQSum, all, packed(all), Type::kF32);
    apply(Kind::kCopy, product(ds, k, sum), -1, dq);
  }

  const AttentionLayout& shape_;
  AttentionGraph graph_;
  std::int64_t next_id_ = 100;
};

}  // namespace

const GraphTensor* AttentionGraph::find(LibraryTensor tensor) const {
  for (const GraphTensor& candidate : tensors)
    if (candidate.id == static_cast<std::int64_t>(tensor)) return &candidate;
  return nullptr;
}

AttentionGraph attention_graph(const AttentionLayout& shape, LibraryPass pass) {
  Builder builder(shape);
  return pass == LibraryPass::kForward ? builder.forward() : builder.backward();
}

std::int64_t library_workspace_bound(const AttentionLayout& shape, LibraryPass pass) {
  constexpr std::int64_t kSmall = 4096;  // and the parts' alignment
  if (pass == LibraryPass::kForward) return kSmall;
  const std::int64_t groups = shape.sequences * shape.heads;
  const std::int64_t tokens = (shape.tokens + 63) / 64 * 64;
  const std::int64_t pairs = shape.deterministic ? 2 * groups * tokens * tokens : 0;
  // dk and dv of every query head, before those of a key head are added.
  const std::int64_t by_head =
      shape.heads == shape.kv_heads
          ? 0
          : groups * (tokens + 64) * (shape.head_dim + shape.value_dim) * 2;
  return pairs + (shape.deterministic ? 1 : 2) * by_head + kSmall;
}

LibraryScratch library_scratch(const AttentionLayout& shape, LibraryPass pass,
                               std::size_t workspace_bytes) {
  LibraryScratch scratch;
  const auto take = [&](std::int64_t bytes) {
    const std::size_t offset = scratch.bytes;
    scratch.bytes += (static_cast<std::size_t>(bytes) + 255) / 256 * 256;
    return offset;
  };
  const std::int64_t rows = shape.sequences * shape.tokens;
  scratch.lse = take(rows * shape.heads * 4);
  if (pass == LibraryPass::kBackward) {
    scratch.delta = take(rows * shape.heads * 4);
    if (shape.written_stride == 0) {
      scratch.dq = take(rows * shape.heads * shape.head_dim * 2);
      scratch.dk = take(rows * shape.kv_heads * shape.head_dim * 2);
      scratch.dv = take(rows * shape.kv_heads * shape.value_dim * 2);
    }
    if (!shape.deterministic) scratch.dq_sum = take(rows * shape.heads * shape.head_dim * 4);
  }
  scratch.workspace = take(static_cast<std::int64_t>(workspace_bytes));
  return scratch;
}

}  // namespace trireme
