// How long a training step waits for a save, beside a memcpy of the same bytes in the same process:
// tests/support/mpirun.sh RANKS build/.../checkpoint_bench DIRECTORY [MIB_OF_A_RANK [STAGING_MIB]].
// Prints a line of JSON for each save: the stall, what memcpy takes (one thread, memory that was
// touched before), both of the slowest rank, and the time to the commit. The first save comes as
// soon after the start as it can.

#include <fmt/core.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/trace.h"
#include "checkpoint/async_writer.h"
#include "comm/launch.h"

namespace {

using namespace trireme;

constexpr std::int64_t kRowBytes = 4096;

/// One flat buffer, as parameters and moments are, in tensors of 1 KiB to 32 MiB.
class BenchState {
 public:
  BenchState(std::int64_t bytes, int rank, int ranks)
      : values(static_cast<std::size_t>(bytes / kRowBytes) * 1024) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i * 2654435761U % 1000003U) * 1e-3F;
    constexpr std::int64_t kRows[] = {1, 8192, 1024, 1, 4096, 4096, 1024};
    const std::int64_t total = bytes / kRowBytes;
    for (std::int64_t at = 0, i = 0; at < total; ++i) {
      const std::int64_t rows = std::min(kRows[i % 7], total - at);
      StateTensor tensor;
      tensor.name = fmt::format("parameters/tensor.{}", i);
      tensor.global_shape = Shape{rows * ranks, 1024};
      tensor.box = {Shape{rows * rank, 0}, Shape{rows, 1024}};
      tensor.data = reinterpret_cast<std::byte*>(values.data() + at * 1024);
      state.tensors.push_back(std::move(tensor));
      at += rows;
    }
  }
  State state;
  std::vector<float> values;
};

double seconds_since(std::int64_t begin_ns) {
  return static_cast<double>(steady_now_ns() - begin_ns) * 1e-9;
}

/// Of the slowest rank.
double slowest(Communicator& world, double seconds) {
  std::array<std::int64_t, 1> ns{static_cast<std::int64_t>(seconds * 1e9)};
  world.maximum(ns);
  return static_cast<double>(ns[0]) * 1e-9;
}

int run(Launch& launch, const std::string& directory, std::int64_t mib, std::int64_t staging_mib) {
  Communicator& world = launch.world();
  BenchState bench(mib << 20, world.rank(), world.size());
  AsyncWriter writer(world, bench.state, {staging_mib << 20});
  std::vector<float> copy;
  for (int step = 1; step <= 6; ++step) {
    SaveRequest request;
    request.directory = directory;
    request.step = step;
    request.state = &bench.state;
    request.retention = {1, 0};
    world.barrier();
    const std::int64_t begin_ns = steady_now_ns();
    if (const auto failed = writer.begin(request)) throw DataError("{}", failed->error);
    const double stall = slowest(world, seconds_since(begin_ns));
    const SaveResult saved = writer.finish();
    if (!saved.saved()) throw DataError("{}", saved.error);
    if (copy.empty()) copy = bench.values;
    world.barrier();
    const std::int64_t copy_ns = steady_now_ns();
    std::memcpy(copy.data(), bench.values.data(), copy.size() * sizeof(float));
    const double memcpy_seconds = slowest(world, seconds_since(copy_ns));
    if (world.rank() != 0) continue;
    const auto gigabytes = static_cast<double>(saved.bytes) * 1e-9;
    fmt::print(R"({{"save": {}, "bytes": {}, "stall_seconds": {:.4f}, "stall_gbps": {:.2f}, )"
               R"("memcpy_gbps": {:.2f}, "stall_of_memcpy": {:.2f}, "save_seconds": {:.3f}}})"
               "\n",
               step, saved.bytes, stall, gigabytes / stall, gigabytes / memcpy_seconds,
               stall / memcpy_seconds, saved.seconds);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: checkpoint_bench DIRECTORY [MIB_OF_A_RANK [STAGING_MIB]]\n");
    return 2;
  }
  Launch launch;
  try {
    return run(launch, argv[1], argc > 2 ? std::atoll(argv[2]) : 1024,
               argc > 3 ? std::atoll(argv[3]) : 0);
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", launch.world().rank(), error.what());
    launch.abort(1);
  }
}
