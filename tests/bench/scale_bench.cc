// What a checkpoint asks of the ranks of a large job, with all of them simulated in this process
// and real files: every rank's part is the one that it would have, cut to a few columns so that a
// disk holds all of them (rows, tensors, shards and ranks are the job's).
//
//     scale_bench CONFIG.json WORLD DIRECTORY [COLUMNS [LISTED_SHARDS_MAX]]
//
// Saves step 1 below DIRECTORY as WORLD ranks would, with the program's own functions, then loads
// what single ranks of as many, of half as many and of 8 would ask for, and compares every element.
// For a mesh of the data axis alone. Prints one line of JSON.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/trace.h"
#include "checkpoint/hdf5_file.h"
#include "checkpoint/reader.h"
#include "checkpoint/test_state.h"
#include "checkpoint/writer.h"
#include "comm/rounds.h"
#include "config/parse.h"
#include "optim/optimizer.h"
#include "plan/rank_part.h"
#include "plan/resolve.h"
#include "store/param_store.h"
#include "train/step_reports.h"

namespace {

using namespace trireme;

double seconds_of(const std::function<void()>& work) {
  const std::int64_t begin_ns = steady_now_ns();
  work();
  return static_cast<double>(steady_now_ns() - begin_ns) * 1e-9;
}

class Job {
 public:
  Job(const std::string& config, std::int64_t world, std::int64_t columns)
      : world_(world), columns_(columns) {
    LoadedConfig loaded = read_run_config({{config}, {}});
    config_ = loaded.config;
    config_.parallel.data = {};
    run_ = resolve_run(config_, {.world = world, .device = DeviceKind::kCuda}, loaded.problems,
                       loaded.notes);
    if (!loaded.problems.empty()) throw DataError("{}", format_problems(loaded.problems));
  }
  [[nodiscard]] std::int64_t world() const { return world_; }

  /// What a rank holds; with memory, filled or not.
  [[nodiscard]] TestState state_of(std::int64_t rank) const {
    const RankPart part =
        part_of_rank(config_, run_, static_cast<int>(rank), StagePurpose::kTraining);
    const State boxes =
        state_boxes(part.declare(config_.model).metas, Optimizer::contents({}).states, part.store);
    TestState state;
    for (const StateTensor& tensor : boxes.tensors) {
      Shape shape = tensor.global_shape;
      Box box = tensor.box;
      for (int dim = 1; dim < shape.rank(); ++dim) {
        shape.set(dim, std::min(shape[dim], columns_));
        box.shape.set(dim, shape[dim]);
      }
      state.add({tensor.name, tensor.dtype, shape, box, tensor.replica, tensor.replicas});
    }
    return state;
  }

 private:
  std::int64_t world_, columns_;
  RunConfig config_;
  ResolvedRun run_;
};

struct Saving {
  std::int64_t shards = 0, shards_of_rank_max = 0, bytes = 0, texts_bytes = 0, text_bytes_max = 0;
  double ranks_seconds = 0, rank_seconds_max = 0, joining_seconds = 0, finishing_seconds = 0;
  std::string written;  // by all ranks
};

SaveRequest request_of(const std::filesystem::path& directory, std::int64_t listed_shards_max) {
  SaveRequest request = request_for(directory, 1, {});
  request.state = nullptr;
  if (listed_shards_max >= 0) request.listed_shards_max = listed_shards_max;
  return request;
}

std::int64_t count_shards(const Job& job, Saving& saving) {
  for (std::int64_t rank = 0; rank < job.world(); ++rank) {
    for (const OwnShard& shard : own_shards(job.state_of(rank).state(), kShardBytesMax)) {
      ++saving.shards;
      saving.bytes += shard.bytes;
    }
  }
  return saving.shards;
}

/// Writes all ranks' files; texts join as they would on their way to rank 0.
void write_files(const Job& job, const SaveRequest& request, const std::filesystem::path& folder,
                 Saving& saving) {
  const bool split = saving.shards > request.listed_shards_max;
  std::vector<std::pair<std::int64_t, std::string>> waiting;  // first rank and text: a subtree
  for (std::int64_t rank = 0; rank < job.world(); ++rank) {
    TestState state = job.state_of(rank);
    state.fill(1);
    const std::vector<OwnShard> shards = own_shards(state.state(), kShardBytesMax);
    saving.shards_of_rank_max = std::max(saving.shards_of_rank_max, std::ssize(shards));
    Staging staging(kShardAlignment, nullptr);
    staging.open(state.state(), shards, Meanwhile::kStay);
    while (!staging.stage(std::chrono::milliseconds(0))) {
    }
    std::string text;
    const double seconds = seconds_of([&] {
      text = write_rank_file(
          {request, folder, static_cast<int>(rank), state.state().tensors, shards, split}, staging,
          [] {});
    });
    saving.ranks_seconds += seconds;
    saving.rank_seconds_max = std::max(saving.rank_seconds_max, seconds);
    saving.texts_bytes += std::ssize(text);
    // A rank joins its children's texts, in order: those whose subtree has ended.
    waiting.emplace_back(rank, std::move(text));
    for (std::int64_t size = 1;; size *= 2) {
      const bool whole = (rank + 1) % (2 * size) == 0 || rank + 1 == job.world();
      if (!whole || waiting.size() < 2) break;
      auto& [lower_first, lower] = waiting[waiting.size() - 2];
      const std::string& higher = waiting.back().second;
      saving.text_bytes_max = std::max(saving.text_bytes_max, std::ssize(higher));
      std::string joined;
      const double joining = seconds_of([&] { joined = join_written(lower, higher, split); });
      if (lower_first == 0) saving.joining_seconds += joining;  // rank 0's own
      lower = std::move(joined);
      waiting.pop_back();
    }
  }
  saving.written = std::move(waiting.front().second);
}

/// What one rank of `world` reads of it.
Json load_as(const Job& job, std::int64_t rank, const std::filesystem::path& step) {
  const auto alone = make_self_communicator();
  TestState state = job.state_of(rank);
  Json json = Json::object();
  json["world"] = job.world();
  Manifest manifest;
  json["manifest_seconds"] = seconds_of([&] { manifest = read_manifest(step); });
  std::int64_t shards = 0;
  std::set<std::string> files;
  json["lists_seconds"] = seconds_of([&] {
    ShardLists lists(step, manifest);
    for (const StateTensor& tensor : state.state().tensors) {
      for (const ManifestShard& shard : lists.meeting(*manifest.find(tensor.name), tensor.box)) {
        ++shards;
        files.insert(shard.file);
      }
    }
  });
  json["shards"] = shards;
  json["files"] = std::ssize(files);
  // Parameters and moments; the rest of the files is shared out among all ranks.
  json["load_seconds"] =
      seconds_of([&] { load_state(step, state.state(), *alone, LoadScope::kParameters); });
  const std::string wrong = state.first_difference(1);
  if (!wrong.empty()) throw DataError("{} loads otherwise than it was saved", wrong);
  return json;
}

int run(int count, char** arguments) {
  if (count < 4) {
    fmt::print("usage: scale_bench CONFIG.json WORLD DIRECTORY [COLUMNS [LISTED_SHARDS_MAX]]\n");
    return 2;
  }
  const std::int64_t world = std::atoll(arguments[2]);
  const std::filesystem::path directory = arguments[3];
  const std::int64_t columns = count > 4 ? std::atoll(arguments[4]) : 4;
  initialise_hdf5();
  const Job job(arguments[1], world, columns);
  const SaveRequest request = request_of(directory, count > 5 ? std::atoll(arguments[5]) : -1);
  Saving saving;
  count_shards(job, saving);
  const std::filesystem::path folder = make_temporary_folder(request, saving.bytes);
  write_files(job, request, folder, saving);
  saving.finishing_seconds =
      seconds_of([&] { finish_checkpoint(request, Json::object(), folder, saving.written); });
  const std::filesystem::path step = directory / step_folder_name(1);
  Json json = Json::object();
  json["world"] = world;
  json["columns"] = columns;
  json["shards"] = saving.shards;
  json["shards_of_rank_max"] = saving.shards_of_rank_max;
  json["manifest_bytes"] =
      static_cast<std::int64_t>(std::filesystem::file_size(step / kManifestName));
  json["all_texts_bytes"] = saving.texts_bytes;
  json["largest_text_bytes"] = saving.text_bytes_max;
  json["rank_file_seconds"] = saving.ranks_seconds / static_cast<double>(world);
  json["rank_file_seconds_max"] = saving.rank_seconds_max;
  json["joining_seconds_of_rank_0"] = saving.joining_seconds;
  json["finishing_seconds"] = saving.finishing_seconds;
  const int ranks = static_cast<int>(world);
  const ReductionTree tree = reduction_tree(0, ranks);
  std::set<int> met(tree.children.begin(), tree.children.end());
  for (const GatherRound& round : gather_rounds(0, ranks)) met.insert({round.to, round.from});
  json["ranks_met_by_rank_0"] = std::ssize(met);
  json["report_bytes_of_rank_0"] =
      static_cast<std::int64_t>(sizeof(RankReport)) * std::ssize(tree.children);
  Json loads = Json::array();
  // A rank with rows of every tensor: few have, where there are more ranks than rows.
  for (const std::int64_t readers : {world, world / 2, std::int64_t{8}})
    loads.push_back(load_as(Job(arguments[1], readers, columns),
                            std::min<std::int64_t>(readers / 3, 341), step));
  json["loads"] = std::move(loads);
  fmt::print("{}\n", json.dump());
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return run(count, arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "scale_bench: {}\n", error.what());
    return 1;
  }
}
