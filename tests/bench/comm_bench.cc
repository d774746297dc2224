// How fast transfers are beside memcpy and MPI_Allreduce. Type: tests/support/mpirun.sh 2
// build/.../comm_bench [SEGMENT_BYTES]. GB/s are bytes of the operand over the time: the same
// figure for all. "mpi": the same transfer without the memory that the ranks share. memcpy
// runs on all ranks at once.

#include <fmt/core.h>
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "base/trace.h"
#include "comm/launch.h"
#include "comm/mpi_communicator.h"

namespace {

using namespace trireme;

/// The fastest of 25 times of each, taken in turn: what else the machine does hits all alike.
std::vector<double> best_seconds(Communicator& world,
                                 const std::vector<std::function<void()>>& works) {
  std::vector<double> best(works.size(), 1e9);
  for (int repeat = 0; repeat < 25; ++repeat) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      world.barrier();
      const std::int64_t begin_ns = steady_now_ns();
      works[i]();
      best[i] = std::min(best[i], static_cast<double>(steady_now_ns() - begin_ns) * 1e-9);
    }
  }
  return best;
}

void measure(Communicator& world, Communicator& shared, Communicator& mpi, std::size_t bytes) {
  // A count that three and four ranks divide.
  std::vector<float> values(bytes / sizeof(float) / 12 * 12 + 12, 1.0F), copy(values.size());
  const TensorView view = view_of(values.data(), {static_cast<std::int64_t>(values.size())});
  std::vector<std::function<void()>> works;
  for (Communicator* channel : {&shared, &mpi}) {
    works.emplace_back([=] { channel->start_all_reduce(view).wait(); });
    works.emplace_back([=] { channel->start_reduce_scatter(view).wait(); });
    works.emplace_back([=] { channel->start_all_gather(view).wait(); });
  }
  works.emplace_back([&] { std::memcpy(copy.data(), values.data(), view.bytes()); });
  if (world.size() > 1) {
    works.emplace_back([&] {
      MPI_Allreduce(values.data(), copy.data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
    });
  }
  std::vector<double> rates;
  for (const double seconds : best_seconds(world, works))
    rates.push_back(static_cast<double>(view.bytes()) * 1e-9 / seconds);
  if (world.rank() != 0) return;
  fmt::print("{:>9}", bytes);
  for (std::size_t i = 0; i < 3; ++i)
    fmt::print(" | {:6.2f} {:6.2f} {:6.2f}x", rates[i], rates[i + 3], rates[i] / rates[i + 3]);
  fmt::print(" | {:6.2f} | {:6.2f}\n", rates.back(), rates[6]);
}

}  // namespace

int main(int count, char** arguments) {
  Launch launch;
  Communicator& world = launch.job();
  std::unique_ptr<Communicator> shared = world.channel("shared"), mpi = world.channel("mpi");
  if (auto* const several = dynamic_cast<MpiCommunicator*>(&world)) {
    const std::size_t segment = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 0;
    shared = several->channel_with_options("shared", {.segment_bytes = segment});
    mpi = several->channel_with_options("mpi", {.shared = false});
  }
  if (world.rank() == 0) {
    fmt::print("{} ranks, {}\n", world.size(), mpi_library_name());
    fmt::print(
        "    bytes | all_reduce  mpi  ratio | reduce_scatter mpi     | all_gather  mpi        | "
        "MPI_Allreduce | memcpy\n");
  }
  for (const std::size_t bytes :
       {std::size_t{4}, std::size_t{1} << 18, std::size_t{1} << 20, std::size_t{1} << 22,
        std::size_t{1} << 24, std::size_t{1} << 26}) {
    measure(world, *shared, *mpi, bytes);
  }
}
