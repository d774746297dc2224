#pragma once
// What the device of one rank does, timed, and whether it computes what others compute.

#include <string>

#include "base/dtype.h"
#include "device/context.h"
#include "preflight/findings.h"

namespace trireme {

class SpeedProbe {
 public:
  /// Products of `type`, by the context's kernels. The context must outlive it.
  SpeedProbe(Context& context, DType type) : context_(context), type_(type) {}

  // The best stretch of about `seconds`, each as long as several turns of a core that is shared: a
  // rank that is held up for a moment is not slow, one that shares its core is.
  /// Operations a second of products of matrices that stay in a CPU's caches, or fill a GPU.
  Speed products(double seconds);
  /// Bytes a second, read and written, of copies that no cache holds.
  Speed copies(double seconds);
  /// Bytes a second from a GPU's memory to pinned memory of the host; 0 on a CPU.
  Speed copies_to_host(double seconds);

  /// Of a product, hashed: equal wherever device, instruction set and threads are. "": none yet.
  [[nodiscard]] const std::string& bits() const { return bits_; }
  /// Whether all products so far had them.
  [[nodiscard]] bool steady() const { return steady_; }

 private:
  Context& context_;
  const DType type_;
  std::string bits_;
  bool steady_ = true;
};

}  // namespace trireme
