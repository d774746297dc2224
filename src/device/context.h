#pragma once
// What an op needs besides its operands: where to run, threads, scratch. One for each rank.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "device/cpu_info.h"
#include "device/device.h"
#include "device/exec.h"
#include "device/host_memory.h"
#include "device/memory.h"

namespace trireme {

struct AttentionBackend;
class KernelChoices;
class OpTrace;

class Context {
 public:
  /// `threads` >= 1 and an instruction set that this CPU has. For a GPU: selects it for the calling
  /// thread and makes the stream that ops run in; ops return before they are done.
  Context(Device device, int threads, Isa isa);
  Context(Context&&) noexcept = default;
  Context& operator=(Context&&) = delete;
  /// For ops that a thread of this one runs beside others: no threads, no scratch, no trace.
  [[nodiscard]] Context one_thread() const;

  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] bool on_gpu() const { return device_.kind == DeviceKind::kCuda; }
  [[nodiscard]] Isa isa() const { return isa_; }
  [[nodiscard]] int threads() const { return exec_.threads; }
  /// Of the GPU; 0 on a CPU.
  [[nodiscard]] int multiprocessors() const { return multiprocessors_; }
  /// For tests: as on a GPU with so many.
  void set_multiprocessors(int count) { multiprocessors_ = count; }
  [[nodiscard]] const Exec& exec() const { return exec_; }
  /// Where ops record what they cost; null (as at first): nowhere. It must outlive the calls.
  [[nodiscard]] OpTrace* op_trace() const { return op_trace_; }
  void set_op_trace(OpTrace* trace) { op_trace_ = trace; }

  /// Whether an op must give equal bits for equal operands (the default), or may be faster.
  [[nodiscard]] bool deterministic() const { return deterministic_; }
  void set_deterministic(bool deterministic) { deterministic_ = deterministic; }

  /// Whether rows of a product have the bits that they have alone (no, at first): gemm.h.
  [[nodiscard]] bool batch_invariant() const { return batch_invariant_; }
  void set_batch_invariant(bool invariant) { batch_invariant_ = invariant; }

  /// Who computes a GPU's attention (kernels/attention); null (as at first): our own kernels.
  [[nodiscard]] const AttentionBackend* attention_backend() const { return attention_backend_; }
  void set_attention_backend(const AttentionBackend& backend) { attention_backend_ = &backend; }

  /// Which kernels serve a GPU's products; null (as at first): by rule. It must outlive the calls.
  [[nodiscard]] KernelChoices* kernel_choices() const { return kernel_choices_; }
  void set_kernel_choices(KernelChoices* choices) { kernel_choices_ = choices; }

  /// At least `bytes` of the device's memory, aligned to 64, valid until the next call: an op uses
  /// it within one call only. Grows on demand: after a shape's first step it allocates nothing.
  std::byte* scratch(std::size_t bytes);
  [[nodiscard]] std::size_t scratch_bytes() const { return scratch_.size(); }
  /// How often memory that ops keep by address has moved: what was recorded before must not be
  /// replayed. Whoever holds such memory outside of a context says so.
  [[nodiscard]] std::int64_t memory_moves() const { return memory_moves_; }
  void memory_moved() { ++memory_moves_; }
  /// Scratch of the host, whatever the device.
  std::byte* host_scratch(std::size_t bytes);
  /// A copy of `bytes` in the device's memory, aligned to 64, for as long as the context lives. The
  /// same bytes give the same copy: for tables that an op derives from its shapes at every call.
  const std::byte* device_constant(std::span<const std::byte> bytes);

  /// On a GPU: the stream of recorded transfers, in one order for all ranks' graphs.
  [[nodiscard]] void* recorded_transfers() const { return recorded_transfers_.get(); }

  /// Waits until all that ops were asked for is done. Throws what failed there.
  void synchronize();

 private:
  Context(Device device, Exec exec, Isa isa) : device_(device), isa_(isa), exec_(exec) {}

  Device device_;
  Isa isa_;
  Exec exec_;
  Memory scratch_;
  std::int64_t memory_moves_ = 0;
  HostBuffer host_scratch_;
  std::map<std::string, Memory, std::less<>> constants_;  ///< by content
  gpu::Stream stream_;                                    ///< that exec_ names
  gpu::Stream recorded_transfers_;
  OpTrace* op_trace_ = nullptr;
  KernelChoices* kernel_choices_ = nullptr;
  int multiprocessors_ = 0;
  const AttentionBackend* attention_backend_ = nullptr;
  bool deterministic_ = true, batch_invariant_ = false;
};

}  // namespace trireme
