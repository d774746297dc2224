#pragma once
// Runs a function in a child process and kills it, or makes the system refuse it, at a chosen
// system call of those that change files. Linux on x86-64; elsewhere `kTracingKnown` is false.

#include <functional>
#include <set>

namespace trireme {

#if defined(__linux__) && defined(__x86_64__)
inline constexpr bool kTracingKnown = true;
#else
inline constexpr bool kTracingKnown = false;
#endif

struct Fault {
  enum class Kind { kNone, kKill, kFailOnce, kFailFromHere };
  Kind kind = Kind::kNone;
  int at = 0;     ///< which of the counted calls, from 0
  int error = 0;  ///< the errno of the kFail kinds
};

struct ChildEnd {
  int calls = 0;         ///< counted ones
  bool refused = false;  ///< tracing is not permitted here
  int exit_code = -1;    ///< what `work` returned; -1 where a signal ended it
  int signal = 0;
};

/// Forks; the child runs `work` and ends with what it returns, without running destructors of the
/// parent's objects.
ChildEnd run_traced(const std::function<int()>& work, const Fault& fault);

}  // namespace trireme
