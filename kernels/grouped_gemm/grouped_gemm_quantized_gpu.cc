#include "kernels/common/dispatch.h"
#include "kernels/common/gpu_info.h"
#include "kernels/common/gpu_scratch.h"
#include "kernels/gemm/gemm_quantized_scales.h"
#include "kernels/grouped_gemm/grouped_gemm_quantized_gpu_table.h"
#include "kernels/grouped_gemm/grouped_gemm_quantized_internal.h"

namespace trireme::grouped_gemm_internal {
namespace {

/// Codes move by TMA.
void check_codes(const char* name, const ConstTensorView& codes) {
  expect(reinterpret_cast<std::uintptr_t>(codes.data) % 16 == 0,
         "grouped_gemm_quantized.{}.codes begin at no multiple of 16 bytes, as a GPU reads them",
         name);
}

const GroupedGemmQuantizedGpuKernels& table() {
  return gpu_table("grouped_gemm_quantized", &GpuKernels::grouped_gemm_fp8_sm90);
}

using gemm_quantized_internal::scales_of;

/// Of rows of a table: each has scales of its own, or those of its segment.
ScalesGpu scales_along(const ConstQuantizedSegments& a) {
  return scales_of(a.scales, {a.codes.shape[0], a.in_blocks() ? 1 : 0}, a.columns);
}
ScalesGpu scales_across(const ConstQuantizedSegments& a) {
  const ScaleDim block = {QuantizedSegments::kBlock, a.columns.block};
  return scales_of(a.scales, a.columns.with_block(a.in_blocks() ? 1 : 0), block);
}

}  // namespace

void multiply_on_gpu(Context& context, const QuantizedGroupedGemm& args) {
  check_codes("a", args.a.codes);
  check_codes("b", args.b.codes);
  GroupedGemmQuantizedGpuArgs raw{.exec = context.exec(),
                                  .c = args.c_RN.data,
                                  .a = args.a.codes.data,
                                  .b = args.b.codes.data,
                                  .begins = args.begins.as<std::int32_t>(),
                                  .experts = args.b.count(),
                                  .sources = args.sources,
                                  .rows = args.c_RN.shape[0],
                                  .n = args.c_RN.shape[1],
                                  .k = args.b.columns.padded_size(),
                                  .a_scales = scales_along(args.a),
                                  .b_scales = scales_of(args.b.scales, args.b.rows, args.b.columns),
                                  .k_parts = 0,
                                  .k_ends = {},
                                  .precise_sums = args.precise_sums,
                                  .format_a = args.a.format(),
                                  .format_b = args.b.codes.dtype,
                                  .multiprocessors = context.multiprocessors()};
  raw.k_parts = gemm_quantized_internal::ends_of_parts(args.b.columns, raw.k_ends);
  table().multiply(raw);
}

void weights_on_gpu(Context& context, const QuantizedGroupedGemmWeights& args) {
  check_codes("a", args.a.codes);
  check_codes("b", args.b.codes);
  const std::int64_t floats = gpu_scratch::grouped_weights_floats(args.sources);
  std::byte* const sums =
      floats == 0 ? nullptr : context.scratch(static_cast<std::size_t>(floats) * sizeof(float));
  const std::int64_t experts = args.c_GMN.shape[0];
  table().weights({.exec = context.exec(),
                   .c = args.c_GMN.as<float>(),
                   .a = args.a.codes.data,
                   .b = args.b.codes.data,
                   .begins = args.begins.as<std::int32_t>(),
                   .experts = experts,
                   .sources = args.sources,
                   .blocks = args.a.codes.shape[0],
                   .m = args.c_GMN.shape[1],
                   .n = args.c_GMN.shape[2],
                   .a_scales = scales_across(args.a),
                   .b_scales = scales_across(args.b),
                   .accumulate = args.accumulate == Accumulate::kYes,
                   .format_a = args.a.format(),
                   .format_b = args.b.format(),
                   .multiprocessors = context.multiprocessors(),
                   .sums = reinterpret_cast<float*>(sums)});
}

}  // namespace trireme::grouped_gemm_internal

namespace trireme {

bool grouped_gemm_quantized_serves(int capability) { return runs_sm90a(capability); }

bool grouped_gemm_quantized_serves(Device device) {
  return device.kind == DeviceKind::kCpu ||
         (grouped_gemm_quantized_serves(info_of(device).capability) &&
          gpu_kernels().grouped_gemm_fp8_sm90 != nullptr);
}

}  // namespace trireme
