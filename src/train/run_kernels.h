#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "kernels/common/kernel_choices.h"
#include "train/runtime.h"

namespace trireme {

/// Which kernels serve the products and attention of a command on GPUs, agreed before its first
/// step: those that TRIREME_KERNEL_CHOICES=FILE names (others then by rule), else those of the
/// checkpoint that the run goes on from, where the same GPU and libraries made it, and the rest
/// measured in a rehearsed step. Ops of the runtime's context obey them while this lives. CPUs have
/// no choice.
///
/// TRIREME_KERNEL_CHOICES=measure leaves the checkpoint's aside, and alone measures on the host.
class RunKernels {
 public:
  static constexpr const char* kFileName = "kernel_choices.json";

  /// Collective. `checkpoint`: "" for none. A malformed file is a SharedError with its place.
  RunKernels(Runtime& runtime, const std::filesystem::path& checkpoint);
  ~RunKernels();
  RunKernels(const RunKernels&) = delete;
  RunKernels& operator=(const RunKernels&) = delete;

  /// Collective. Where kernels are still to be measured: runs `rehearsal`, after which gradients
  /// and losses are no good, and measures those that come; what several ranks have measured
  /// gets the choice of the lowest of them on all ranks.
  void measure(const std::function<void()>& rehearsal);
  /// The file's content, the same on every rank; "" where nothing was chosen.
  [[nodiscard]] std::string text() const;

 private:
  void read(const std::filesystem::path& checkpoint);
  void agree();

  Runtime& runtime_;
  Json device_, libraries_;
  KernelChoices choices_;
};

}  // namespace trireme
