// A job that hangs on purpose: `hang_program TIMEOUT_SECONDS RANK WHERE`. Every rank runs steps of
// a few collectives; in step 4, RANK stops itself (WHERE = stop), waits for ever in the backward
// pass (sleep), or goes on (none).

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "comm/heartbeat.h"
#include "train/watchdog.h"

int main(int argc, char** argv) {
  using namespace trireme;
  if (argc != 4) return 2;
  const int guilty = std::atoi(argv[2]);
  const std::string where = argv[3];
  Launch launch;
  Heartbeat heartbeat(launch);
  Trace trace;
  Watchdog watchdog(launch, heartbeat, trace, std::atof(argv[1]));
  std::vector<float> values(100000, 1.0F);
  for (int step = 1; step <= 10; ++step) {
    const bool now = step == 4 && launch.world().rank() == guilty;
    {
      const Span span(trace, Phase::kBackwardInput);
      if (now && where == "stop") ::raise(SIGSTOP);
      while (now && where == "sleep") ::pause();
    }
    {
      const Span span(trace, Phase::kCommunication);
      launch.world()
          .start_all_reduce(view_of(values.data(), {static_cast<std::int64_t>(values.size())}))
          .wait();
    }
    watchdog.step_finished(step, 0.01);
  }
  return 0;
}
