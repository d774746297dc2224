#pragma once
// Chooses among the tables of an op by what the context runs on.

#include "base/error.h"
#include "device/context.h"
#include "kernels/common/cpu_tables.h"
#include "kernels/common/gpu_kernels.h"

namespace trireme {

/// The GPU's table of an op that has one of its own kind.
template <class Table>
const Table& gpu_table(const char* op, const Table* GpuKernels::*member) {
  const Table* table = gpu_kernels().*member;
  expect(table != nullptr, "{} has no table for GPUs", op);
  return *table;
}

template <class Table>
const Table& choose_by_isa(const Context& context, const CpuTables<Table>& cpu) {
  return *cpu[static_cast<std::size_t>(context.isa())];
}

template <class Table>
const Table& choose_table(const char* op, const Context& context, const CpuTables<Table>& cpu,
                          const Table* GpuKernels::*gpu) {
  return context.on_gpu() ? gpu_table(op, gpu) : choose_by_isa(context, cpu);
}

}  // namespace trireme
