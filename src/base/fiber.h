#pragma once
// Two functions in turns on one thread, each on a stack of its own: for actions of a pipeline that
// compute while what the other has sent travels.

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>

namespace trireme {

class Fiber {
 public:
  /// Its stack has room for what a thread's has by default; pages are taken as they are used.
  Fiber();
  /// What has begun and not ended is unwound.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// The next `resume` begins `body`. Where one has begun and not ended it is unwound first.
  void begin(std::function<void()> body);
  /// Runs on until the body gives way or ends; throws what it throws. False: it has ended.
  bool resume();

 private:
  friend void give_way();
  static void enter(unsigned high, unsigned low);
  void run();
  void switch_to();
  void unwind() noexcept;

  void* stack_;
  ucontext_t own_ = {}, resumer_ = {};
  std::function<void()> body_;
  std::exception_ptr error_;
  enum class State : std::uint8_t { kNone, kReady, kSuspended, kUnwinding };
  State state_ = State::kNone;
};

/// In a fiber: back to who resumes it, until that resumes it again. Elsewhere nothing.
void give_way();

}  // namespace trireme
