#include "plan/rank_memory.h"

#include <algorithm>
#include <functional>

#include "base/human_format.h"
#include "parallel/cut.h"

namespace trireme {

namespace {

/// A change of the config, and what a rank needs then.
struct Change {
  std::string text;
  std::int64_t total = 0;
};

class Advisor {
 public:
  Advisor(const RunConfig& config, std::int64_t world, DeviceKind device, std::int64_t available,
          StagePurpose purpose)
      : config_(config), world_(world), device_(device), available_(available), purpose_(purpose) {
    now_ = total_of(config, world);
  }

  std::string text() {
    if (now_ == 0) return "";
    smaller_micro();
    set("parallel.recompute \"full\"",
        [](RunConfig& changed) { changed.parallel.recompute = Recompute::kFull; });
    zero_stage();
    if (config_.precision.compute != ComputePrecision::kBf16) {
      set("precision.compute \"bf16\"",
          [](RunConfig& changed) { changed.precision.compute = ComputePrecision::kBf16; });
    }
    more_tensor_ranks();
    if (config_.checkpoint.async && device_ == DeviceKind::kCpu)
      set("checkpoint.async false", [](RunConfig& changed) { changed.checkpoint.async = false; });
    const std::int64_t half = config_.data.sequence_length / 2;
    if (half > 0) {
      set(fmt::format("data.sequence_length {}", half),
          [half](RunConfig& changed) { changed.data.sequence_length = half; });
    }
    return best_changes();
  }

 private:
  /// 0 where it does not resolve.
  [[nodiscard]] std::int64_t total_of(const RunConfig& config, std::int64_t world) const {
    ResolveInput input;
    input.world = world;
    input.device = device_;
    std::vector<Problem> problems;
    std::vector<std::string> notes;
    try {
      const ResolvedRun run = resolve_run(config, input, problems, notes);
      if (!problems.empty() || run.pipeline.stages.empty()) return 0;
      return most_of(ranks_of(config, run, purpose_)).total();
    } catch (const Error&) {  // not to hide the fault that this is an advice for
      return 0;
    }
  }

  [[nodiscard]] std::int64_t total_with(const std::function<void(RunConfig&)>& change,
                                        std::int64_t world) const {
    RunConfig changed = config_;
    change(changed);
    return total_of(changed, world);
  }

  /// What helps less than a twentieth is left out.
  void add(std::string text, std::int64_t total) {
    if (total > 0 && total < now_ - now_ / 20) changes_.push_back({std::move(text), total});
  }

  void set(std::string text, const std::function<void(RunConfig&)>& change) {
    add(std::move(text), total_with(change, world_));
  }

  /// The global batch stays: accumulation makes up for it.
  void smaller_micro() {
    const std::int64_t micro = config_.batch.micro.value_or(1);
    std::int64_t total = 0, chosen = 0;
    for (std::int64_t size = micro / 2; size > 0; size /= 2) {
      if (micro % size != 0) continue;
      const std::int64_t with = total_with(
          [size](RunConfig& changed) {
            changed.batch.micro = size;
            changed.batch.accumulation.reset();
          },
          world_);
      if (with == 0) continue;
      chosen = size;
      total = with;
      if (total <= available_) break;
    }
    if (chosen > 0) add(fmt::format("batch.micro {}", chosen), total);
  }

  void zero_stage() {
    std::int64_t total = 0, chosen = 0;
    for (std::int64_t stage = config_.parallel.zero_stage + 1; stage <= 3; ++stage) {
      const std::int64_t with =
          total_with([stage](RunConfig& changed) { changed.parallel.zero_stage = stage; }, world_);
      if (with == 0) continue;
      chosen = stage;
      total = with;
      if (total <= available_) break;
    }
    if (chosen > 0) add(fmt::format("parallel.zero_stage {}", chosen), total);
  }

  void more_tensor_ranks() {
    const std::int64_t tensor = 2 * config_.parallel.tensor;
    const std::int64_t total =
        total_with([tensor](RunConfig& changed) { changed.parallel.tensor = tensor; }, 2 * world_);
    add(fmt::format("parallel.tensor {} on {} ranks", tensor, 2 * world_), total);
  }

  std::string best_changes() {
    constexpr std::size_t kShownMax = 4;
    std::stable_sort(changes_.begin(), changes_.end(),
                     [](const Change& a, const Change& b) { return a.total < b.total; });
    std::string text;
    for (std::size_t i = 0; i < std::min(kShownMax, changes_.size()); ++i) {
      text += fmt::format("{}{} ({}{})", i == 0 ? "" : ", ", changes_[i].text,
                          i == 0 ? "a rank then needs " : "", format_bytes(changes_[i].total));
    }
    return text;
  }

  const RunConfig& config_;
  const std::int64_t world_;
  const DeviceKind device_;
  const std::int64_t available_;
  const StagePurpose purpose_;
  std::int64_t now_ = 0;
  std::vector<Change> changes_;
};

}  // namespace

std::vector<EqualRanks> ranks_of(const RunConfig& config, const ResolvedRun& run,
                                 StagePurpose purpose) {
  std::vector<EqualRanks> ranks;
  const int places = run.mesh.extent(Axis::kTensor), stages = run.mesh.extent(Axis::kPipeline);
  const int of_stage = run.mesh.size() / stages;
  for (int rank = 0; rank < run.mesh.size();
       rank += rank % of_stage + 1 < places ? 1 : of_stage - places + 1) {
    const MemoryRequest request = memory_request(config, run, purpose, rank);
    EqualRanks equal{rank, rank / of_stage, of_stage / places, 0,
                     estimate_memory(config.model, request)};
    for (const ParamMeta& param : request.part.declare(config.model).metas) {
      if (param.shares == kNoParam)
        equal.parameters +=
            local_shape(param.shape, param.cut, request.part.store.of(param.view).tensor).count();
    }
    if (!ranks.empty() && ranks.back().memory == equal.memory &&
        ranks.back().parameters == equal.parameters && ranks.back().stage == equal.stage) {
      ranks.back().count += equal.count;
    } else {
      ranks.push_back(equal);
    }
  }
  return ranks;
}

RankMemory most_of(const std::vector<EqualRanks>& ranks) {
  RankMemory most;
  for (const EqualRanks& rank : ranks) {
    if (rank.memory.total() > most.total()) most = rank.memory;
  }
  return most;
}

namespace {

/// Of the ranks of each stage, so many of its tensor-parallel ones.
RankMemory most_memory(const RunConfig& config, const ResolvedRun& run, int places) {
  RankMemory most;
  for (int first = 0; first < run.mesh.size(); first += run.mesh.stage_size()) {
    for (int place = 0; place < places; ++place) {
      MemoryRequest request = memory_request(config, run, StagePurpose::kTraining, first + place);
      if (run.device == DeviceKind::kCuda) request.saving_max = 0;
      const RankMemory memory = estimate_memory(config.model, request);
      if (memory.total() > most.total()) most = memory;
    }
  }
  return most;
}

}  // namespace

RankMemory most_memory(const RunConfig& config, const ResolvedRun& run) {
  return most_memory(config, run, run.mesh.extent(Axis::kTensor));
}

RankMemory most_memory_of_firsts(const RunConfig& config, const ResolvedRun& run) {
  return most_memory(config, run, 1);
}

std::string needed_text(const RankMemory& memory) {
  std::string text;
  for (const auto& [name, bytes] : items_of(memory))
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, format_bytes(bytes));
  return text + fmt::format(": {} together", format_bytes(memory.total()));
}

std::string memory_advice(const RunConfig& config, std::int64_t world, DeviceKind device,
                          std::int64_t available, StagePurpose purpose) {
  return Advisor(config, world, device, available, purpose).text();
}

}  // namespace trireme
