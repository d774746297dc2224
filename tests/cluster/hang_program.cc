// A job that hangs on purpose: `hang_program TIMEOUT_SECONDS RANK WHERE`. Every rank runs steps of
// a few collectives; in step 4, RANK
//   stop:PHASE   stops itself in that phase (start: before the first step)
//   sleep        waits for ever in the backward pass
//   die          kills itself, where no launcher would end the others
//   size, operation, order   enters another collective than the others
//   writer       has a checkpoint writer that stood still for ten minutes, while steps go on
//   none         goes on

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "comm/heartbeat.h"
#include "guard/watchdog.h"

namespace trireme {
namespace {

TensorView first(std::vector<float>& values, std::int64_t count) {
  return view_of(values.data(), {count});
}

struct Program {
  Launch& launch;
  Trace& trace;
  int guilty;
  std::string where;
  std::unique_ptr<Communicator> forward = launch.job().channel("forward");
  std::unique_ptr<Communicator> backward = launch.job().channel("backward");
  std::vector<float> values = std::vector<float>(6000000, 1.0F);

  void pass(Phase phase, bool now) {
    const Span span(trace, phase);
    if (now && where == "stop:" + std::string(name_of(phase))) ::raise(SIGSTOP);
    while (now && where == "sleep" && phase == Phase::kBackwardInput) ::pause();
    if (now && where == "die" && phase == Phase::kForward) ::raise(SIGKILL);
  }

  void communicate(bool now) {
    const Span span(trace, Phase::kCommunication);
    Communicator& a = now && where == "order" ? *backward : *forward;
    Communicator& b = now && where == "order" ? *forward : *backward;
    Pending pending = a.start_all_reduce(first(values, now && where == "size" ? 3000000 : 100000));
    if (now && where == "stop:communication") ::raise(SIGSTOP);
    pending.wait();
    if (now && where == "operation") {
      b.start_all_gather(first(values, launch.job().size() * 2000000)).wait();
    } else {
      b.start_all_reduce(first(values, 100000)).wait();
    }
  }
};

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  using namespace trireme;
  if (argc != 4) return 2;
  Launch launch;
  Heartbeat heartbeat(launch);
  Trace trace;
  Watchdog watchdog(launch, heartbeat, std::atof(argv[1]));
  const Watchdog::Following following(watchdog, trace);
  Program program{launch, trace, std::atoi(argv[2]), argv[3]};
  const bool guilty = launch.job().rank() == program.guilty;
  program.pass(Phase::kStart, guilty);
  const bool writer = program.where == "writer";
  const std::atomic<std::int64_t> stood_still_since{steady_now_ns() - 600'000'000'000};
  for (int step = 1; step <= (writer ? 300 : 10); ++step) {
    const bool now = step == 4 && guilty;
    if (now && writer) watchdog.watch_writer(&stood_still_since);
    if (step > 4 && writer) ::usleep(100'000);
    for (const Phase phase :
         {Phase::kForward, Phase::kBackwardInput, Phase::kCheckpoint, Phase::kEvaluation})
      program.pass(phase, now);
    program.communicate(now);
    watchdog.step_finished(step, 0.01);
  }
  return 0;
}
