#pragma once
// An op's table of functions, once for each instruction set.

#include "device/isa.h"

namespace trireme {

/// By Isa.
template <class Kernels>
using CpuTables = const Kernels* const[kIsaCount];

}  // namespace trireme

#define TRIREME_DECLARE_TABLE(enumerator, isa, text, supported, Kernels, name) \
  namespace isa {                                                              \
  extern const Kernels name;                                                   \
  }
#define TRIREME_TABLE_ADDRESS(enumerator, isa, text, supported, name) &isa::name,

/// In namespace trireme: declares `const Kernels name` in the namespace of every instruction set,
/// which <op>_cpu.cc defines, and `name` here, all of them by Isa.
#define TRIREME_CPU_TABLES(Kernels, name)                        \
  TRIREME_INSTRUCTION_SETS(TRIREME_DECLARE_TABLE, Kernels, name) \
  inline constexpr CpuTables<Kernels> name = {TRIREME_INSTRUCTION_SETS(TRIREME_TABLE_ADDRESS, name)}
