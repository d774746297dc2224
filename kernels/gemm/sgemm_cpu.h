#pragma once
// What sgemm_cpu.cc, compiled for one instruction set, gives the table in gemm_cpu.cc.

#include "kernels/gemm/gemm_table.h"

namespace trireme::TRIREME_ISA {

void sgemm(const SgemmArgs& args, float* scratch);
std::int64_t sgemm_scratch();

}  // namespace trireme::TRIREME_ISA
