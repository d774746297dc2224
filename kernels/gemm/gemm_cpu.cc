#include "kernels/common/parallel.h"
#include "kernels/common/simd.h"
#include "kernels/gemm/gemm_table.h"

namespace trireme::TRIREME_ISA {
namespace {

template <class To, class From>
void copy_rows(const PanelArgs& args) {
  parallel_ranges(args.exec, args.rows, args.columns, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      To* to = static_cast<To*>(args.destination) + r * args.destination_stride;
      const From* from = static_cast<const From*>(args.source) + r * args.source_stride;
      for_each_vector(0, args.columns, [&](std::int64_t c, auto lanes) {
        F32::load(from + c, lanes).store(to + c, lanes);
      });
    }
  });
}

void copy_panel(const PanelArgs& args) {
  if (args.destination_type == DType::kBF16) {
    if (args.source_type == DType::kBF16) return copy_rows<BFloat16, BFloat16>(args);
    return copy_rows<BFloat16, float>(args);
  }
  if (args.source_type == DType::kBF16) return copy_rows<float, BFloat16>(args);
  copy_rows<float, float>(args);
}

}  // namespace

const GemmKernels gemm_cpu = {copy_panel};

}  // namespace trireme::TRIREME_ISA
