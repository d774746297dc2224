#pragma once
// Where a thread may run, on machines of any size: a plain cpu_set_t ends at CPU 1023.

#include <pthread.h>
#include <sched.h>

#include <cstddef>

namespace trireme {

/// More than any Linux has.
inline constexpr int kCpusMax = 16384;

/// A set of CPUs, empty at first.
class CpuMask {
 public:
  CpuMask() : set_(CPU_ALLOC(kCpusMax)) { CPU_ZERO_S(bytes(), set_); }
  ~CpuMask() { CPU_FREE(set_); }
  CpuMask(const CpuMask&) = delete;
  CpuMask& operator=(const CpuMask&) = delete;

  [[nodiscard]] int count() const { return CPU_COUNT_S(bytes(), set_); }
  [[nodiscard]] bool has(int cpu) const { return CPU_ISSET_S(cpu, bytes(), set_) != 0; }
  void add(int cpu) { CPU_SET_S(cpu, bytes(), set_); }
  /// The mask of the calling thread; false: the system does not say.
  [[nodiscard]] bool read() { return ::sched_getaffinity(0, bytes(), set_) == 0; }
  /// Keeps the calling thread, and those it starts later, on these CPUs; false: the system refuses.
  bool apply() const { return ::sched_setaffinity(0, bytes(), set_) == 0; }
  bool apply(pthread_t thread) const {
    return ::pthread_setaffinity_np(thread, bytes(), set_) == 0;
  }

 private:
  [[nodiscard]] static std::size_t bytes() { return CPU_ALLOC_SIZE(kCpusMax); }

  cpu_set_t* set_;
};

/// How many CPUs the calling thread may run on; 1 where the system does not say.
inline int cpus_of_this_thread() {
  CpuMask mask;
  return mask.read() ? mask.count() : 1;
}

}  // namespace trireme
