#include "base/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/error.h"

namespace trireme {

namespace {

constexpr std::size_t kStackBytes = std::size_t{8} << 20;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOneStack = true;  // they know one stack of a thread: a body runs to its end at once
#else
constexpr bool kOneStack = false;
#endif

thread_local Fiber* running = nullptr;

/// Unwinds a body that nobody will resume; no error, and caught by nobody else.
struct Unwound {};

}  // namespace

Fiber::Fiber() {
  const auto guard = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  stack_ = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (stack_ == MAP_FAILED) throw EnvironmentError("no memory for a second stack of a thread");
  mprotect(stack_, guard, PROT_NONE);  // a stack that overflows ends here
}

Fiber::~Fiber() {
  unwind();
  munmap(stack_, kStackBytes);
}

void Fiber::unwind() noexcept {
  if (state_ != State::kSuspended) return;
  state_ = State::kUnwinding;
  switch_to();
  error_ = nullptr;
}

void Fiber::begin(std::function<void()> body) {
  unwind();
  body_ = std::move(body);
  state_ = State::kReady;
}

// makecontext passes ints alone.
void Fiber::enter(unsigned high, unsigned low) {
  const auto address = static_cast<std::uintptr_t>(high) << 32 | low;
  reinterpret_cast<Fiber*>(address)->run();
}

void Fiber::run() {
  try {
    body_();
  } catch (const Unwound&) {
  } catch (...) {
    error_ = std::current_exception();
  }
  state_ = State::kNone;
}

void Fiber::switch_to() {
  Fiber* const outer = std::exchange(running, this);
  swapcontext(&resumer_, &own_);
  running = outer;
}

bool Fiber::resume() {
  expect(state_ == State::kReady || state_ == State::kSuspended, "a fiber that has ended");
  if (kOneStack) {
    state_ = State::kNone;
    body_();
    return false;
  }
  if (state_ == State::kReady) {
    getcontext(&own_);
    own_.uc_stack = {.ss_sp = stack_, .ss_flags = 0, .ss_size = kStackBytes};
    own_.uc_link = &resumer_;
    const auto address = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::enter), 2,
                static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
    state_ = State::kSuspended;
  }
  switch_to();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return state_ == State::kSuspended;
}

void give_way() {
  Fiber* const me = running;
  if (me == nullptr) return;
  swapcontext(&me->own_, &me->resumer_);
  if (me->state_ == Fiber::State::kUnwinding) throw Unwound();
}

}  // namespace trireme
