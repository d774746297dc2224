#pragma once
// How kernels are executed, from the environment.

namespace trireme::ptx {

struct Options {
  /// TRIREME_PTX_SUMS=tensor-core: mma.sync and wgmma add as Hopper does; otherwise k upwards in
  /// fp32.
  bool tensor_core_sums = false;
  /// TRIREME_PTX_APPROXIMATE=worst: approximate instructions are off by the manual's bound;
  /// otherwise exact.
  bool worst_approximations = false;
  /// TRIREME_PTX_OPEN_LOADS=allowed: a block may end before its TMA loads have arrived, a warp
  /// before its TMA stores have been waited for; otherwise errors.
  bool open_copies = false;
};
const Options& options();

}  // namespace trireme::ptx
