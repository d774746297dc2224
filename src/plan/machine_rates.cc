#include "plan/machine_rates.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/trace.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_quantized.h"
#include "kernels/quantize/quantize.h"
#include "tensor/buffer.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

/// Of the matrices whose product is timed; a GPU wants larger ones to be busy.
constexpr std::int64_t kSide = 2048, kGpuSide = 8192;
constexpr std::int64_t kCopyMin = 1 << 16, kCopyStep = 4;
/// Small copies are repeated until they have moved this much: the clock must not show.
constexpr std::int64_t kBytesTimed = 32 << 20;
constexpr int kRepetitions = 4;

/// The first repetition pays for pages and for what libraries make once; it is one among several.
template <class Work>
double best_seconds(const RateRequest& request, const Work& work) {
  double best = INFINITY;
  for (int i = 0; i < kRepetitions; ++i) {
    request.together();
    const std::int64_t begin_ns = steady_now_ns();
    work();
    best = std::min(best, static_cast<double>(steady_now_ns() - begin_ns) * 1e-9);
  }
  return best;
}

/// Ordinary numbers: zeros and subnormals run at other speeds, and cost a GPU less power.
Buffer filled(Context& context, DType dtype, const Shape& shape) {
  Buffer buffer(dtype, shape);
  for (std::int64_t i = 0; i < shape.count(); ++i) {
    const float value = 0.5F + static_cast<float>(i % 251) / 512;
    if (dtype == DType::kF32) buffer.view().as<float>()[i] = value;
    if (dtype == DType::kBF16) buffer.view().as<BFloat16>()[i] = to_bfloat16(value);
  }
  if (!context.on_gpu()) return buffer;
  Buffer copy(dtype, shape, context.device());
  copy_in(context, copy.view(), {buffer.view().data, buffer.bytes()});
  return copy;
}

double product_rate(Context& context, const RateRequest& request, DType dtype) {
  const std::int64_t side = context.on_gpu() ? kGpuSide : kSide;
  const Shape shape{side, side};
  const Buffer a = filled(context, dtype, shape), b = filled(context, dtype, shape);
  const Buffer c = filled(context, dtype, shape);
  Gemm args;
  args.c_MN = c.view();
  args.a = a.view();
  args.b = b.view();
  const double operations = 2.0 * static_cast<double>(side * side * side);
  double seconds = best_seconds(request, [&] {
    gemm(context, args);
    context.synchronize();
  });
  // Our own product on a CPU must not be the measure of itself.
  if (!context.on_gpu() && (dtype == DType::kF32 || context.isa() >= Isa::kAvx512Bf16))
    seconds = std::min(seconds, best_seconds(request, [&] { gemm_by_library(context, args); }));
  return operations / seconds;
}

double fp8_product_rate(Context& context, const RateRequest& request) {
  const Shape shape{kGpuSide, kGpuSide};
  const Buffer values = filled(context, DType::kBF16, shape),
               c = filled(context, DType::kBF16, shape);
  const ScaleDim whole(kGpuSide, 0);
  const auto quantised = [&](const Buffer& codes, const Buffer& scales) {
    Quantize args;
    args.out = {codes.view(), scales.view(), whole, whole, true};
    args.x = values.view();
    quantize(context, args);
    return args.out;
  };
  const Buffer a(DType::kF8E4M3, shape, context.device()),
      b(DType::kF8E4M3, shape, context.device());
  const Buffer a_scale(DType::kF32, {1, 1}, context.device()),
      b_scale(DType::kF32, {1, 1}, context.device());
  QuantizedGemm args;
  args.c_MN = c.view();
  args.a = quantised(a, a_scale);
  args.b = quantised(b, b_scale);
  args.precise_sums = false;
  const double seconds = best_seconds(request, [&] {
    gemm_quantized(context, args);
    context.synchronize();
  });
  return 2.0 * static_cast<double>(kGpuSide * kGpuSide * kGpuSide) / seconds;
}

}  // namespace

double MachineRates::flops_per_second(DType type) const {
  if (type == DType::kBF16 && bf16_flops_per_second > 0) return bf16_flops_per_second;
  return is_fp8(type) && fp8_flops_per_second > 0 ? fp8_flops_per_second : sgemm_flops_per_second;
}

double MachineRates::copy_bytes_per_second(double bytes) const {
  const auto above = std::find_if(copies.begin(), copies.end(), [&](const CopyRate& rate) {
    return static_cast<double>(rate.bytes) >= bytes;
  });
  if (above == copies.end()) return memory_bytes_per_second();
  if (above == copies.begin()) return above->bytes_per_second;
  const CopyRate& below = *(above - 1);
  const double whole =
      std::log(static_cast<double>(above->bytes) / static_cast<double>(below.bytes));
  const double part = std::log(bytes / static_cast<double>(below.bytes)) / whole;
  return below.bytes_per_second + part * (above->bytes_per_second - below.bytes_per_second);
}

double MachineRates::cache_bytes_per_second() const {
  double best = 0;
  for (const CopyRate& rate : copies) best = std::max(best, rate.bytes_per_second);
  return best;
}

void MachineRates::add(const MachineRates& other) {
  sgemm_flops_per_second += other.sgemm_flops_per_second;
  bf16_flops_per_second += other.bf16_flops_per_second;
  fp8_flops_per_second += other.fp8_flops_per_second;
  if (copies.empty()) {
    copies = other.copies;
    return;
  }
  for (std::size_t i = 0; i < copies.size(); ++i) {
    copies[i].bytes_per_second += other.copies.at(i).bytes_per_second;
  }
}

std::int64_t copy_bytes_beyond_cache() {
  const auto cache = static_cast<std::int64_t>(::sysconf(_SC_LEVEL3_CACHE_SIZE));
  return std::clamp<std::int64_t>(4 * cache, 128 << 20, 1 << 30);
}

MachineRates measure_rates(Context& context, const RateRequest& request) {
  MachineRates rates;
  rates.sgemm_flops_per_second = product_rate(context, request, DType::kF32);
  if (request.bf16) rates.bf16_flops_per_second = product_rate(context, request, DType::kBF16);
  if (request.fp8 && context.on_gpu())
    rates.fp8_flops_per_second = fp8_product_rate(context, request);
  const std::int64_t largest = std::max(request.largest_copy, kCopyMin) / 8;
  const Buffer from = filled(context, DType::kF32, {largest}),
               to = filled(context, DType::kF32, {largest});
  for (std::int64_t bytes = kCopyMin;; bytes = std::min(bytes * kCopyStep, largest * 8)) {
    const TensorView source = from.view().rows(0, bytes / 8),
                     destination = to.view().rows(0, bytes / 8);
    const std::int64_t times = std::max<std::int64_t>(1, kBytesTimed / bytes);
    const double seconds = best_seconds(request, [&] {
      for (std::int64_t i = 0; i < times; ++i) cast(context, destination, source);
      context.synchronize();
    });
    rates.copies.push_back({bytes, static_cast<double>(bytes * times) / seconds});
    if (bytes == largest * 8) return rates;
  }
}

}  // namespace trireme
