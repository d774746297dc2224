#pragma once
// What product_cpu.cc, compiled for one instruction set, gives the table in gemm_cpu.cc.

#include "kernels/gemm/gemm_table.h"

namespace trireme::TRIREME_ISA {

extern const CpuProduct f32_product;
extern const CpuProduct bf16_product;  ///< nothing where no pairs are multiplied
void multiply_rows(const RowProductArgs& args);

}  // namespace trireme::TRIREME_ISA
