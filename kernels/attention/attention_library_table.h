#pragma once
// What a library that serves attention offers, and cuDNN's.

#include <array>
#include <string_view>

#include "device/exec.h"
#include "kernels/attention/attention_library.h"

namespace trireme {

struct AttentionLibraryCall {
  Exec exec;
  AttentionLayout shape;
  LibraryPass pass = LibraryPass::kForward;
  std::array<void*, kLibraryTensorCount> memory = {};  ///< by LibraryTensor; numbers left out
  float scale = 1;
  void* workspace = nullptr;
};

struct AttentionLibraryKernels {
  /// Why it serves nothing on this machine (a library that cannot be opened); null where it may.
  const char* (*missing)();
  std::int64_t (*version)();
  /// Decides how the selected GPU computes the pass, and says what memory that takes. Throws
  /// EnvironmentError where the library has no kernel for it. Remembered for each thread.
  std::size_t (*workspace_bytes)(const AttentionLayout&, LibraryPass);
  /// Asynchronous, in the stream of exec. `workspace`: as many bytes as that, aligned to 256.
  void (*run)(const AttentionLibraryCall&);
};

namespace cuda {
/// cuDNN 9.16 or later, opened when the program runs.
extern const AttentionLibraryKernels attention_cudnn;

/// The workspace of cuDNN's plan for a GPU of these properties (its JSON). For tests.
std::size_t attention_cudnn_planned_bytes(const AttentionLayout& shape, LibraryPass pass,
                                          std::string_view device_json);
}  // namespace cuda

}  // namespace trireme
