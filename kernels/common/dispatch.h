#pragma once
// Chooses among the tables of an op by what the context runs on.

#include "base/error.h"
#include "device/context.h"

namespace trireme {

/// `op` names the op in the error for a device that has no table.
template <class Table>
const Table& choose_table(const char* op, const Context& context, const Table& avx2,
                          const Table& avx512) {
  expect(context.device().kind == DeviceKind::kCpu, "{} has no table for this device", op);
  return context.isa() == Isa::kAvx512 ? avx512 : avx2;
}

}  // namespace trireme
