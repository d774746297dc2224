// Saves or loads a state of 0.25 billion parameters with both moments, fp32, cut by rows among the
// ranks: 3 GB. Type: tests/support/mpirun.sh 2 build/.../checkpoint_io_bench MODE DIRECTORY [LAYERS
// [STAGING_MIB]]. Prints lines of JSON: bytes of all ranks, seconds from a barrier to the last
// rank's end; of `async` how long a step waits for each of three saves beside it, with the same
// bytes copied by one thread of each rank at the same moment. Between the start and the first save
// lie ten seconds of work on the state, in which the writer's thread takes its memory from the
// system; a run has interval_steps for it. scripts/bench_checkpoint.sh sets all of it beside dd,
// cat and torch.distributed.checkpoint.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/math.h"
#include "base/parallel_for.h"
#include "base/trace.h"
#include "checkpoint/async_writer.h"
#include "checkpoint/reader.h"
#include "comm/launch.h"
#include "support/save_checkpoint.h"

namespace {

using namespace trireme;

/// The tensors of a Llama of width 1024; 16 layers are 0.25 billion parameters. bench_dcp.py lists
/// the same.
std::vector<std::pair<std::string, Shape>> tensors_of(int layers) {
  std::vector<std::pair<std::string, Shape>> tensors{{"model.embed_tokens.weight", {22000, 1024}},
                                                     {"lm_head.weight", {22000, 1024}}};
  for (int i = 0; i < layers; ++i) {
    const auto add = [&](const char* name, const Shape& shape) {
      tensors.emplace_back(fmt::format("model.layers.{}.{}.weight", i, name), shape);
    };
    for (const char* name : {"q", "k", "v", "o"})
      add(fmt::format("self_attn.{}_proj", name).c_str(), {1024, 1024});
    for (const char* name : {"gate", "up"})
      add(fmt::format("mlp.{}_proj", name).c_str(), {2816, 1024});
    add("mlp.down_proj", {1024, 2816});
    add("input_layernorm", {1024});
    add("post_attention_layernorm", {1024});
  }
  return tensors;
}

/// One flat buffer, as a rank's moments are.
class BenchState {
 public:
  BenchState(int layers, int rank, int ranks) {
    std::int64_t total = 0;
    for (const auto& [name, shape] : tensors_of(layers)) {
      Box box = {Shape(shape), shape};
      for (int dim = 0; dim < shape.rank(); ++dim) box.offset.set(dim, 0);
      const Slice shard = even_slice(shape[0], ranks, rank);
      box.offset.set(0, shard.begin);
      box.shape.set(0, shard.size);
      for (const std::string& full : {"parameters/" + name, "optimizer/" + name + "/exp_avg",
                                      "optimizer/" + name + "/exp_avg_sq"}) {
        StateTensor tensor;
        tensor.name = full;
        tensor.global_shape = shape;
        tensor.box = box;
        offsets_.push_back(total);
        state.tensors.push_back(tensor);
        total += round_up(box.shape.count(), 16);
      }
    }
    values.resize(static_cast<std::size_t>(total));
    for (std::size_t i = 0; i < state.tensors.size(); ++i)
      state.tensors[i].data = reinterpret_cast<std::byte*>(values.data() + offsets_[i]);
  }
  void fill() {
    std::uint64_t number = 1;
    for (float& value : values) {
      number = number * 6364136223846793005U + 1442695040888963407U;
      value = static_cast<float>(number >> 40U) * 1e-6F - 8.0F;
    }
  }
  State state;
  std::vector<float> values;

 private:
  std::vector<std::int64_t> offsets_;
};

double seconds_of(Communicator& world, const std::function<void()>& work) {
  world.barrier();
  const std::int64_t begin_ns = steady_now_ns();
  work();
  world.barrier();
  return static_cast<double>(steady_now_ns() - begin_ns) * 1e-9;
}

SaveRequest request_of(const BenchState& bench, const std::string& directory, std::int64_t step) {
  SaveRequest request;
  request.directory = directory;
  request.step = step;
  request.state = &bench.state;
  request.retention = {1, 0};
  return request;
}

void save_beside(Communicator& world, BenchState& bench, const std::string& directory,
                 std::int64_t staging_mib, std::int64_t bytes) {
  AsyncWriter writer(world, bench.state, {staging_mib << 20});
  constexpr std::int64_t kWorkNs = 10'000'000'000;
  const std::int64_t begin_ns = steady_now_ns();
  do bench.fill();
  while (steady_now_ns() - begin_ns < kWorkNs);
  std::vector<float> copy;
  for (std::int64_t number = 0; number < 3; ++number) {
    const SaveRequest request = request_of(bench, directory, number + 1);
    std::optional<SaveResult> failed;
    const double stall = seconds_of(world, [&] { failed = writer.begin(request); });
    const SaveResult saved = failed ? *failed : writer.finish();
    if (!saved.saved()) throw DataError("{}", saved.error);
    if (copy.empty()) copy = bench.values;
    const double memcpy_seconds = seconds_of(
        world, [&] { std::memcpy(copy.data(), bench.values.data(), copy.size() * sizeof(float)); });
    if (world.rank() != 0) continue;
    fmt::print(R"({{"mode": "async", "number": {}, "bytes": {}, "seconds": {:.4f}, )"
               R"("memcpy_seconds": {:.4f}, "save_seconds": {:.3f}}})"
               "\n",
               number, bytes, stall, memcpy_seconds, saved.seconds);
  }
}

int run(Launch& launch, const std::string& mode, const std::string& directory, int layers,
        std::int64_t staging_mib) {
  Communicator& world = launch.job();
  BenchState bench(layers, world.rank(), world.size());
  double seconds = 0;
  std::array<std::int64_t, 1> bytes{static_cast<std::int64_t>(bench.values.size() * sizeof(float))};
  world.sum(bytes);
  if (mode == "async") {
    save_beside(world, bench, directory, staging_mib, bytes[0]);
    return 0;
  }
  if (mode == "save") {
    bench.fill();
    const SaveRequest request = request_of(bench, directory, 1);
    SaveResult result;
    seconds = seconds_of(world, [&] { result = save_checkpoint(request, world); });
    if (!result.saved()) throw DataError("{}", result.error);
  } else if (mode == "load") {
    bench.fill();  // a run's memory has been touched by its initialisation
    seconds =
        seconds_of(world, [&] { load_state(directory + "/step-00000001", bench.state, world); });
  } else {
    bench.fill();
    std::vector<float> copy(bench.values);
    seconds = seconds_of(
        world, [&] { std::memcpy(copy.data(), bench.values.data(), copy.size() * sizeof(float)); });
  }
  if (world.rank() == 0) {
    fmt::print(R"({{"mode": "{}", "bytes": {}, "seconds": {:.4f}}})"
               "\n",
               mode, bytes[0], seconds);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr,
               "usage: checkpoint_io_bench save|load|async|memcpy DIRECTORY [LAYERS "
               "[STAGING_MIB]]\n");
    return 2;
  }
  Launch launch;
  try {
    return run(launch, argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 16,
               argc > 4 ? std::atoi(argv[4]) : 0);
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", launch.job().rank(), error.what());
    launch.abort(1);
  }
}
