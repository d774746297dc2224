#pragma once
// Every op at the shapes of three models, each beside this machine's rates: ops_bench on the CPU,
// ops_bench_gpu on a GPU.

#include <benchmark/benchmark.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "device/context.h"
#include "tensor/buffer.h"
#include "tensor/heads_view.h"
#include "tensor/quantized_view.h"

namespace trireme::bench {

/// A Llama model and its micro-batch.
struct Size {
  const char* name;
  std::int64_t layers, heads, kv_heads, hidden, ffn, tokens, sequences, vocab;
  [[nodiscard]] std::int64_t rows() const { return sequences * tokens; }
  [[nodiscard]] std::int64_t head_dim() const { return hidden / heads; }
  [[nodiscard]] std::int64_t kv_hidden() const { return kv_heads * head_dim(); }
  [[nodiscard]] std::int64_t qkv() const { return hidden + 2 * kv_hidden(); }
};
inline constexpr Size kCpuSizes[] = {{"S", 4, 4, 2, 128, 352, 64, 12, 256},
                                     {"M", 6, 6, 3, 384, 1024, 256, 16, 256},
                                     {"L", 12, 12, 6, 768, 2048, 512, 4, 50257}};
/// Of the largest two layers: as many as fit beside its logits.
inline constexpr Size kGpuSizes[] = {{"124M", 12, 12, 12, 768, 3072, 1024, 16, 50304},
                                     {"1558M", 48, 25, 25, 1600, 6400, 1024, 8, 50304},
                                     {"8B", 2, 32, 8, 4096, 14336, 8192, 1, 128256}};

/// Where this program's ops run.
Device bench_device();

/// What an op runs on: buffers live as long as the benchmark, filled with ordinary numbers.
class Operands {
 public:
  Operands(Context& context, const Size& size_, DType type_)
      : size(size_), type(type_), context_(context) {}
  TensorView f32(const Shape& shape) { return filled(DType::kF32, shape); }
  /// i32, these.
  TensorView i32(const std::vector<std::int32_t>& values);
  /// f64, zeros.
  TensorView f64(const Shape& shape) { return keep(Buffer(DType::kF64, shape)); }
  /// f32, not negative.
  TensorView squares(const Shape& shape) { return filled(DType::kF32, shape, Values::kSquares); }
  /// Of the benchmark's type.
  TensorView typed(const Shape& shape) { return filled(type, shape); }
  /// e4m3.
  TensorView codes(const Shape& shape) { return filled(DType::kF8E4M3, shape); }
  /// e4m3, padded, and their scales.
  QuantizedView quantized(const ScaleDim& rows, const ScaleDim& columns) {
    return {codes(codes_shape(rows, columns, true)), f32(scales_shape(rows, columns)), rows,
            columns, true};
  }
  /// In [0, below).
  TensorView indices(std::int64_t count, std::int64_t below);
  /// 0, 1, ..., tokens - 1 for each sequence.
  TensorView positions();
  /// Where each of `segments` even parts of all rows begins, and where the last ends.
  TensorView begins(std::int64_t segments);

  const Size& size;
  const DType type;

 private:
  enum class Values : std::uint8_t { kAny, kSquares };
  TensorView filled(DType dtype, const Shape& shape, Values values = Values::kAny);
  /// The tensor, or a copy of it where the benchmark runs.
  TensorView keep(Buffer buffer);
  Context& context_;
  std::vector<Buffer> buffers_;
};

/// Takes its operands and returns what is timed.
using MakeOp = std::function<std::function<void(Context&)>(Operands&)>;

/// Registers OP/SIZE/TYPE/threads:N for all sizes, the types, and 1 and 2 threads (of a CPU). What
/// is timed calls one op: its span says how many operations and bytes a call has. Counters of a
/// product or attention: GFLOP/s, sgemm_GFLOP/s and of_sgemm (products of bf16 or fp8:
/// bf16_GFLOP/s and of_bf16, or fp8's), with what this machine reaches on large matrices; of the
/// others: GB/s, copy_GB/s and of_copy, with a copy of as many bytes.
void add_op(const std::string& op, std::initializer_list<DType> types, const MakeOp& make);
/// The same for sizes of its own, which live as long as the program.
void add_op_of(std::span<const Size> sizes, const std::string& op,
               std::initializer_list<DType> types, const MakeOp& make);

inline constexpr std::initializer_list<DType> kBothTypes = {DType::kF32, DType::kBF16};
inline constexpr std::initializer_list<DType> kOnlyF32 = {DType::kF32};
inline constexpr std::initializer_list<DType> kOnlyBF16 = {DType::kBF16};

void add_products();
void add_attention();
void add_token_ops();
void add_expert_ops();
void add_parameter_ops();

}  // namespace trireme::bench
