#pragma once
// What an op needs besides its operands: where to run, with how many threads, and a scratch area.
// Passed explicitly everywhere; one for each rank.

#include <cstddef>
#include <cstdint>

#include "device/cpu_info.h"
#include "device/device.h"
#include "device/exec.h"
#include "device/host_memory.h"

namespace trireme {

class OpTrace;

class Context {
 public:
  /// `threads` >= 1 and an instruction set that this CPU has.
  Context(Device device, int threads, Isa isa);

  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] Isa isa() const { return isa_; }
  [[nodiscard]] int threads() const { return exec_.threads; }
  [[nodiscard]] const Exec& exec() const { return exec_; }
  /// Where ops record what they cost; null (as at first): nowhere. It must outlive the calls.
  [[nodiscard]] OpTrace* op_trace() const { return op_trace_; }
  void set_op_trace(OpTrace* trace) { op_trace_ = trace; }

  /// At least `bytes`, aligned to 64, valid until the next call: an op uses it within one call
  /// only. Grows on demand, so that after the first step of a shape it allocates nothing.
  std::byte* scratch(std::size_t bytes);
  [[nodiscard]] std::size_t scratch_bytes() const { return scratch_.size(); }

 private:
  Device device_;
  Isa isa_;
  Exec exec_;
  HostBuffer scratch_;
  OpTrace* op_trace_ = nullptr;
};

}  // namespace trireme
