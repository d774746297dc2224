// Compiled for each test executable; everything else is shared.
#include "kernels/support/op_test.h"

namespace trireme {

std::vector<Isa> isas_to_test() {
#ifdef TRIREME_WIDE_TESTS
  return {Isa::kAvx512};
#else
  if (detect_isa() == Isa::kAvx512) return {Isa::kAvx2, Isa::kAvx512};
  return {Isa::kAvx2};
#endif
}

}  // namespace trireme
