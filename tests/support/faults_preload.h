#pragma once
// What a test asks of the preloaded library in its own process; nothing where it is not preloaded.

#include <dlfcn.h>

#include <string>

namespace trireme {

enum class FaultKind : int { kNone, kKill, kFailOnce, kFailFromHere, kShort };

/// The library's functions, looked up by name.
class FaultsInProcess {
 public:
  FaultsInProcess()
      : arm_(reinterpret_cast<Arm>(::dlsym(RTLD_DEFAULT, "trireme_fault_arm"))),
        calls_(reinterpret_cast<Calls>(::dlsym(RTLD_DEFAULT, "trireme_fault_calls"))),
        directory_(reinterpret_cast<Directory>(::dlsym(RTLD_DEFAULT, "trireme_fault_directory"))) {}
  [[nodiscard]] bool preloaded() const { return arm_ != nullptr; }
  /// Calls below this folder count from now on.
  void watch(const std::string& folder) const { directory_(folder.c_str()); }
  /// The count begins anew.
  void arm(FaultKind kind, int at, int error) const { arm_(static_cast<int>(kind), at, error); }
  void disarm() const { arm(FaultKind::kNone, 0, 0); }
  [[nodiscard]] int calls() const { return calls_(); }

 private:
  using Arm = void (*)(int, int, int);
  using Calls = int (*)();
  using Directory = void (*)(const char*);
  Arm arm_;
  Calls calls_;
  Directory directory_;
};

}  // namespace trireme
