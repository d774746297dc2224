#include "kernels/common/measure_kernel.h"

#include <algorithm>
#include <array>

#include "device/context.h"
#include "device/gpu.h"

namespace trireme {

double measure_kernel(Context& context, const std::function<void()>& run) {
  constexpr int kTimings = 7, kRunsMax = 20;
  constexpr double kTimingMicroseconds = 200;
  const gpu::Event begin(gpu::make_timing_event()), end(gpu::make_timing_event());
  const auto time = [&](int runs) {
    gpu::record(begin.get(), context.exec().stream);
    for (int i = 0; i < runs; ++i) run();
    gpu::record(end.get(), context.exec().stream);
    return gpu::elapsed_microseconds(begin.get(), end.get()) / runs;
  };
  run();  // loads code, allocates
  const double once = std::max(time(1), 1.0);
  const int runs = std::clamp(static_cast<int>(kTimingMicroseconds / once), 1, kRunsMax);
  std::array<double, kTimings> times{};
  for (double& one : times) one = time(runs);
  std::nth_element(times.begin(), times.begin() + kTimings / 2, times.end());
  return times[kTimings / 2];
}

}  // namespace trireme
