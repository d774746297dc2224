// How fast start_all_reduce is beside memcpy and MPI_Allreduce. Type: tests/support/mpirun.sh 2
// build/.../comm_bench GB/s are bytes of the buffer over the median time: the same figure for all
// three.

#include <fmt/core.h>
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "base/trace.h"
#include "comm/launch.h"

namespace {

using namespace trireme;

double median_seconds(Communicator& world, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int repeat = 0; repeat < 25; ++repeat) {
    world.barrier();
    const std::int64_t begin_ns = steady_now_ns();
    work();
    seconds.push_back(static_cast<double>(steady_now_ns() - begin_ns) * 1e-9);
  }
  std::nth_element(seconds.begin(), seconds.begin() + 12, seconds.end());
  return seconds[12];
}

void measure(Launch& launch, std::size_t bytes) {
  Communicator& world = launch.world();
  std::vector<float> values(bytes / sizeof(float), 1.0F), copy(values.size());
  const double ours = median_seconds(world, [&] {
    world.start_all_reduce(view_of(values.data(), {static_cast<std::int64_t>(values.size())}))
        .wait();
  });
  const double copying =
      median_seconds(world, [&] { std::memcpy(copy.data(), values.data(), bytes); });
  double library = 0;
  if (world.size() > 1) {
    library = median_seconds(world, [&] {
      MPI_Allreduce(values.data(), copy.data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
    });
  }
  if (world.rank() != 0) return;
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  fmt::print(
      "{:>9} bytes  start_all_reduce {:6.2f} GB/s ({:9.1f} us)  MPI_Allreduce {:6.2f} GB/s  memcpy "
      "{:6.2f} GB/s\n",
      bytes, gigabytes / ours, ours * 1e6, library > 0 ? gigabytes / library : 0.0,
      gigabytes / copying);
}

}  // namespace

int main() {
  Launch launch;
  if (launch.world().rank() == 0)
    fmt::print("{} ranks, {}\n", launch.world().size(), mpi_library_name());
  for (const std::size_t bytes :
       {std::size_t{4}, std::size_t{4096}, std::size_t{1} << 18, std::size_t{1} << 20,
        std::size_t{1} << 24, std::size_t{1} << 26}) {
    measure(launch, bytes);
  }
}
