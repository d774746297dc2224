// For the test executables of the CPU's tables.
#include "kernels/support/op_test.h"

namespace trireme {

std::vector<Isa> isas_to_test() {
#ifdef TRIREME_WIDE_TESTS
  return {kIsas[kIsaCount - 1]};
#else
  std::vector<Isa> isas;
  for (const Isa isa : kIsas) {
    if (isa <= detect_isa()) isas.push_back(isa);
  }
  return isas;
#endif
}

namespace test_device {

Device device() { return {}; }
std::byte* allocate(std::size_t bytes) { return new std::byte[bytes]; }
void release(std::byte* memory) { delete[] memory; }
void initialise(std::byte*, std::size_t) {}
void synchronize() {}
std::vector<std::string> in_every_order(const std::function<std::string()>& run) {
  return {run(), run()};
}
bool tensor_core_sums() { return false; }
TensorCoreSums::TensorCoreSums() : given(false) {}
TensorCoreSums::~TensorCoreSums() = default;

}  // namespace test_device
}  // namespace trireme
