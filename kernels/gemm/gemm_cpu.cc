#include "kernels/common/parallel.h"
#include "kernels/common/simd.h"
#include "kernels/gemm/product_cpu.h"

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

template <class T>
void add_to(const AddArgs& args) {
  T* to = static_cast<T*>(args.destination);
  const T* from = static_cast<const T*>(args.source);
  parallel_ranges(args.exec, args.count, 1, [&](std::int64_t first, std::int64_t last) {
    for_each_vector(first, last, [&](std::int64_t i, auto lanes) {
      (F32::load(to + i, lanes) + F32::load(from + i, lanes)).store(to + i, lanes);
    });
  });
}

void add(const AddArgs& args) {
  if (args.type == DType::kF32) return add_to<float>(args);
  add_to<BFloat16>(args);
}

}  // namespace

constinit const GemmKernels gemm_cpu = {copy_panel, add, &f32_product, &bf16_product,
                                        multiply_rows};

}  // namespace trireme::TRIREME_ISA
