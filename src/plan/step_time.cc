#include "plan/step_time.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/math.h"
#include "config/adapters.h"
#include "pipeline/simulate.h"
#include "plan/matrix_time.h"

namespace trireme {

namespace {

double real(std::int64_t value) { return static_cast<double>(value); }

/// What a virtual stage holds, and what its actions take.
struct StagePart {
  PartTime time;
  PartSize size, layers;  ///< of all that is trained; of its layers alone, what is read
  PartSize read_back;     ///< of its layers, what B reads
  MatrixWorks matrices;   ///< where they are updated as wholes
  double layer_count = 0, layers_back = 0, blocks = 0;
  bool embedding = false, head = false;
};

/// Layers that are alike are walked once.
class StageSums {
 public:
  StageSums(const ModelConfig& model, const StepLayout& layout, const PartTimes& parts)
      : model_(model), layout_(layout), parts_(parts) {}

  StagePart of(const ChunkRange& range) {
    StagePart stage;
    for (std::int64_t i = 0; i < range.layers; ++i) {
      const Kind& kind = kind_of(range.first_layer + i);
      stage.time += kind.time;
      stage.size.dense += kind.trained.dense;
      stage.size.experts += kind.trained.experts;
      stage.layers.dense += kind.size.dense;
      stage.layers.experts += kind.size.experts;
      for (std::size_t view = 0; view < kind.matrices.size(); ++view)
        stage.matrices[view] += kind.matrices[view];
      if (!kind.goes_back) continue;
      stage.read_back.dense += kind.size.dense;
      stage.read_back.experts += kind.size.experts;
      ++stage.layers_back;
    }
    stage.layer_count = real(range.layers);
    stage.embedding = range.embedding;
    stage.head = range.head;
    if (range.embedding) stage.time += parts_.embedding();
    if (range.head) stage.time += parts_.head();
    const bool tied_here = model_.tied_embeddings && range.embedding && range.head;
    if (range.head) stage.size.dense += parts_.head_adapter_size();
    if (!model_.adapters)
      stage.size.dense += parts_.vocabulary_size() * (tied_here ? 1 : range.embedding + range.head);
    stage.blocks = real(range.layers + range.embedding + range.head);
    return stage;
  }

 private:
  struct Kind {
    std::int64_t layer = 0;
    bool fp8 = false, goes_back = true;
    PartTime time;
    PartSize size, trained;
    MatrixWorks matrices;
  };
  const Kind& kind_of(std::int64_t layer) {
    const bool fp8 = layout_.fp8 && layer >= layout_.fp8->bf16_layers[0] &&
                     layer < model_.layer_count() - layout_.fp8->bf16_layers[1];
    const bool goes_back = layer >= first_trained_layer(model_);
    for (const Kind& kind : kinds_) {
      if (kind.fp8 == fp8 && kind.goes_back == goes_back &&
          model_.layer(kind.layer) == model_.layer(layer))
        return kind;
    }
    kinds_.push_back({layer,
                      fp8,
                      goes_back,
                      parts_.layer(layer),
                      parts_.layer_size(layer),
                      parts_.trained_size(layer),
                      {}});
    if (layout_.whole_matrices)
      kinds_.back().matrices = matrix_work(model_, layer, layout_, parts_.ops());
    return kinds_.back();
  }
  const ModelConfig& model_;
  const StepLayout& layout_;
  const PartTimes& parts_;
  std::vector<Kind> kinds_;
};

/// Sums and gathers of what data ranks have in common.
class DataAxis {
 public:
  /// Work that transfers go on behind, and in how many blocks they do.
  struct Behind {
    double seconds = 0, blocks = 1;
  };
  DataAxis(const StepLayout& layout, const Cluster& cluster, const PartTimes& parts)
      : layout_(layout), cluster_(cluster), parts_(parts) {
    const std::int64_t tensor = layout.extent(Axis::kTensor);
    groups_[0] = group(layout.data_ranks(), layout.zero_ranks, tensor);
    const std::int64_t expert_data = layout.expert_data_ranks();
    groups_[1] =
        group(expert_data, std::gcd(layout.zero_ranks, expert_data), layout.expert_ranks());
    const std::int64_t expert_tensor = layout.expert_tensor;
    parts_of_[0] = LinkTime(cluster, layout.zero_ranks * tensor, 1);
    parts_of_[1] = LinkTime(cluster, groups_[1].shards.ranks() * expert_tensor,
                            expert_tensor > 1 ? 1 : layout.expert);
  }

  /// Gradients of a stage, once. `again`: they are added to those of micro-batches before.
  [[nodiscard]] PassTime reduce(const PartSize& size, const Behind& work, bool again) const {
    const double element = cluster_.program
                               ? cluster_.program->gradient_bytes
                               : real(static_cast<std::int64_t>(size_of(layout_.wire)));
    const bool staged = layout_.zero_stage > 0 || layout_.wire != DType::kF32;
    double seconds = 0, bytes = 0, passes = 0;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const double count = i == 0 ? size.dense : size.experts, all = count * element;
      const auto& [shards, copies] = groups_[i];
      const double n = real(shards.ranks()), q = real(copies.ranks());
      seconds += one_way(shards, all) + 2 * one_way(copies, all / n);
      bytes += all * (1 - 1 / n) + 2 * all / n * (1 - 1 / q);
      if (staged && n * q > 1)
        passes += in_blocks(count * (4 + element), work.blocks) +
                  in_blocks(count / n * (element + (again ? 8 : 4)), work.blocks);
    }
    return behind(seconds, bytes, passes, work);
  }
  /// Weights of a stage, as products read them, once.
  [[nodiscard]] PassTime gather(const PartSize& size, const Behind& work) const {
    const double element =
        layout_.fp8 ? 1 : real(static_cast<std::int64_t>(size_of(layout_.compute)));
    double seconds = 0, bytes = 0, passes = 0;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const double all = (i == 0 ? size.dense : size.experts) * element;
      const double n = real(groups_[i].shards.ranks());
      seconds += groups_[i].shards.ring(all);
      bytes += all * (1 - 1 / n);
      if (n > 1) passes += in_blocks(2 * all * (1 + 1 / n), work.blocks);
    }
    return behind(seconds, bytes, passes, work);
  }
  /// Passes of norm and update over what the rank owns, and the norm's sum over all ranks.
  [[nodiscard]] double update(const PartSize& size) const {
    const double read = layout_.update_bytes + (layout_.compute == DType::kF32 ? 0 : 2);
    const double each = cluster_.program ? cluster_.program->optimizer_bytes : read;
    const double owned = size.dense / real(groups_[0].shards.ranks()) +
                         size.experts / real(groups_[1].shards.ranks());
    const LinkTime all(cluster_, layout_.mesh.size(), 1);
    return parts_.ops().memory(each * owned) + 2 * all.ring(8);
  }
  /// Of matrices that are updated as wholes: what a rank computes, and what travels before and
  /// behind that.
  [[nodiscard]] double orthogonalize(const MatrixWorks& matrices) const {
    double seconds = 0;
    for (std::size_t i = 0; i < matrices.size(); ++i)
      seconds += shared_seconds(matrices[i], parts_of_[i].ranks());
    return seconds;
  }
  [[nodiscard]] PassTime parts_of(const MatrixWorks& matrices) const {
    PassTime pass;
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      const Axis cut = i == 0 ? Axis::kTensor : Axis::kExpert;
      pass += parts_time(matrices[i], parts_of_[i], layout_.compute,
                         groups_[i].shards.ranks() == 1 ? cut : Axis::kData);
    }
    return pass;
  }

 private:
  struct Group {
    LinkTime shards, copies;
  };
  [[nodiscard]] Group group(std::int64_t ranks, std::int64_t shards, std::int64_t stride) const {
    return {{cluster_, shards, stride}, {cluster_, ranks / shards, stride * shards}};
  }
  [[nodiscard]] double one_way(const LinkTime& link, double bytes) const {
    if (layout_.sums == ReductionOrder::kLibrary) return link.ring(bytes);
    return link.to_all(bytes * (1 - 1 / real(link.ranks())));
  }
  /// Shards are put together and taken apart block by block.
  [[nodiscard]] double in_blocks(double bytes, double blocks) const {
    return cluster_.program ? 0 : blocks * parts_.ops().memory(bytes / blocks);
  }
  /// The last block (or the first one's gather) shows in any case.
  [[nodiscard]] PassTime behind(double seconds, double bytes, double passes,
                                const Behind& work) const {
    double hidden = std::min(seconds * (1 - 1 / work.blocks), work.seconds);
    if (cluster_.program) {
      hidden = seconds * cluster_.program->overlap.data;
    } else {
      for (const LinkTime* const link : {&groups_[0].shards, &groups_[0].copies})
        if (link->ranks() > 1)
          hidden = std::min(hidden, parts_.hidden(*link, seconds, 1, work.seconds));
    }
    PassTime pass;
    pass.compute = passes;
    pass.exposed[Axis::kData] = seconds - hidden;
    pass.hidden[Axis::kData] = hidden;
    pass.bytes[Axis::kData] = bytes;
    return pass;
  }

  const StepLayout& layout_;
  const Cluster& cluster_;
  const PartTimes& parts_;
  std::array<Group, 2> groups_ = {Group{{cluster_, 1, 1}, {cluster_, 1, 1}},
                                  Group{{cluster_, 1, 1}, {cluster_, 1, 1}}};
  /// Ranks that hold one copy of a view's parameters.
  std::array<LinkTime, 2> parts_of_ = {LinkTime{cluster_, 1, 1}, LinkTime{cluster_, 1, 1}};
};

class Prediction {
 public:
  Prediction(const ModelConfig& model, const StepLayout& layout, const Cluster& cluster,
             ScheduleShape shape)
      : model_(model),
        layout_(layout),
        cluster_(cluster),
        parts_(model, layout, cluster),
        data_(layout, cluster, parts_),
        neighbour_(cluster, layout.extent(Axis::kPipeline), layout.mesh.stage_size()),
        shape_(std::move(shape)),
        crowding_(crowding()) {
    StageSums sums(model, layout, parts_);
    for (const ChunkRange& range : layout.stages) stages_.push_back(sums.of(range));
    for (StagePart& stage : stages_) add_transfers(stage);
  }

  PredictedStep run() {
    for (const std::vector<Action>& actions : layout_.schedule->ranks)
      for (const Action& action : actions) splits_ |= action.kind == ActionKind::kBackwardInput;
    const ActionTimes times = action_times();
    const Simulation played = simulate(*layout_.schedule, times);
    ActionTimes free = times;
    free.transfer = 0;
    const double late =
        times.transfer == 0
            ? 0
            : std::max(0.0, played.step_span - simulate(*layout_.schedule, free).step_span);
    PredictedStep last;
    double update = 0;
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      const PredictedStep step = of_rank(rank, played, late);
      update = std::max(update, step.optimizer);
      if (rank == 0 || step.seconds - step.optimizer > last.seconds - last.optimizer) last = step;
    }
    // Everybody waits for the norm, then for the longest update.
    last.seconds += update - last.optimizer + cluster_.host.step_seconds;
    last.optimizer = update;
    last.host += cluster_.host.step_seconds;
    return last;
  }

  [[nodiscard]] double least(bool may_split) const {
    std::vector<RankLeast> ranks(static_cast<std::size_t>(shape_.ranks));
    double forward = 0, backward = 0;  // of the stages before
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const PartTime& time = stages_[s].time;
      const double together = time.backward.seconds(), input = time.backward_input.seconds();
      const double apart = input + time.backward_weight.seconds();
      const double back = may_split ? std::min(together, input) : together;
      const double all = may_split ? std::min(together, apart) : together;
      if (s > 0 && shape_.placement[s - 1] != shape_.placement[s]) {
        const double transfer = cluster_.program ? 0 : neighbour_.hop(stream_bytes());
        forward += transfer;
        backward += transfer;
      }
      RankLeast& rank = ranks[static_cast<std::size_t>(shape_.placement[s])];
      if (!rank.known) rank = {true, forward, backward};
      rank.to_input += time.forward.seconds() + back;
      rank.work += time.forward.seconds() + all;
      forward += time.forward.seconds();
      backward += back;
    }
    const double passes = real(layout_.passes.accumulation);
    double first = 0, last = 0, update = 0;  // when rank 0 ends, and any
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      const RankLeast& of = ranks[static_cast<std::size_t>(rank)];
      first = std::max(first, of.before + passes * of.to_input + of.behind);
      const auto [sums, optimizer] = after_actions(rank);
      last = std::max(last, of.before + passes * of.work + sums);
      update = std::max(update, optimizer);
    }
    const int of_first = shape_.placement.front();
    last = std::max(last, first + after_actions(of_first).sums);
    last /= crowding_;
    return (last + update + cluster_.host.step_seconds) * (1 - 1e-9);  // sums round
  }

 private:
  /// Threads of a core where the stages of a pipeline share those of one node; 1 where a rank waits
  /// for the others of its core in any case, or has one.
  [[nodiscard]] double crowding() const {
    const std::int64_t ranks = layout_.mesh.size();
    if (shape_.ranks == 1 || ranks > cluster_.devices_per_node) return 1;
    return threads_of_core(cluster_, ranks, layout_.threads);
  }

  /// Stages whose ranks come to one core, where as many ranks are kept on each: rank r of a node on
  /// core r mod cores (device/topology.h), a stage's ranks behind the one before's.
  [[nodiscard]] std::size_t processor_groups() const {
    const std::int64_t cores = cluster_.cores_per_node;
    if (layout_.mesh.size() % cores != 0 || layout_.threads > 1) return 1;
    return static_cast<std::size_t>(cores /
                                    std::gcd<std::int64_t>(cores, layout_.mesh.stage_size()));
  }

  /// Of the virtual stages of a rank: what comes before the first F and behind the last B.
  struct RankLeast {
    bool known = false;
    double before = 0, behind = 0, to_input = 0, work = 0;
  };
  struct AfterActions {
    double sums = 0, optimizer = 0;
  };
  [[nodiscard]] AfterActions after_actions(int rank) const {
    PassTime once;
    const double update = sum_over_data(rank, once);
    return {once.seconds(), update};
  }

  /// Bytes that a stage hands on.
  [[nodiscard]] double stream_bytes() const {
    return real(layout_.residual_tokens() * model_.hidden) *
           real(static_cast<std::int64_t>(size_of(layout_.compute)));
  }

  /// What each action of a stage moves beside its layers.
  void add_transfers(StagePart& stage) const {
    PartTime& time = stage.time;
    if (layout_.zero_stage == 3) add_gathers(stage);
    if (layout_.zero_stage >= 2) {
      const bool again = layout_.passes.accumulation > 1;
      for (PassTime* const pass : {&time.backward_weight, &time.backward})
        *pass += data_.reduce(stage.size, {pass->compute, stage.blocks}, again);
    }
    if (!cluster_.program || neighbour_.ranks() == 1) return;
    // Another system's sends stand between its actions.
    PassTime sent;
    const double seconds = neighbour_.hop(stream_bytes()),
                 part = cluster_.program->overlap.pipeline;
    sent.exposed[Axis::kPipeline] = (1 - part) * seconds;
    sent.hidden[Axis::kPipeline] = part * seconds;
    time.forward += sent;
    time.backward += sent;
    time.backward_input += sent;
  }

  /// ZeRO 3 (store/weight_gather.h): F gathers layers and head, B all layers but the last, which
  /// stands there; on a rank without a pipeline the next F finds the first two. The embedding has
  /// memory of its own and is gathered once.
  void add_gathers(StagePart& stage) const {
    const auto part = [](double share, PartSize size) {
      return PartSize{share * size.dense, share * size.experts};
    };
    const double passes = real(layout_.passes.accumulation), count = stage.layer_count;
    const double found = stages_.size() == 1 ? std::min(2.0, count) * (passes - 1) / passes : 0;
    PartSize forward = part(1 - found / count, stage.layers);
    if (stage.head) forward.dense += parts_.vocabulary_size();
    PartTime& time = stage.time;
    time.forward += data_.gather(forward, {time.forward.compute, stage.blocks});
    if (stage.layers_back == 0) return;
    const PassTime again = data_.gather(part(1 - 1 / stage.layers_back, stage.read_back),
                                        {time.backward.compute, stage.blocks});
    time.backward_input += again;
    time.backward += again;
  }

  [[nodiscard]] ActionTimes action_times() const {
    ActionTimes times{0, 0, 0, 0};
    const double share = 1 / real(std::ssize(stages_));
    for (const StagePart& stage : stages_) {
      const PartTime& time = stage.time;
      const StageTimes of{time.forward.seconds(),
                          splits_ ? time.backward_input.seconds() : time.backward.seconds(),
                          splits_ ? time.backward_weight.seconds() : 0, time.recompute.seconds()};
      times.stages.push_back(of);
      times.forward += share * of.forward;
      times.backward_input += share * of.backward_input;
      times.backward_weight += share * of.backward_weight;
    }
    if (crowding_ > 1) {
      // What the walk has is among ranks that all compute.
      times = (1 / crowding_) * times;
      times.processors = shape_.ranks / crowding_;
      times.processor_groups = processor_groups();
    }
    if (!cluster_.program) times.transfer = neighbour_.hop(stream_bytes());
    return times;
  }

  void count(PredictedStep& step, const PassTime& pass, double times = 1) const {
    const PassTime all = times * pass;
    step.compute += all.compute;
    step.host += all.host;
    step.exposed += all.exposed;
    step.hidden += all.hidden;
    step.bytes += all.bytes;
  }
  void count_action(PredictedStep& step, const Action& action) const {
    const PartTime& time = stages_[static_cast<std::size_t>(action.virtual_stage)].time;
    switch (action.kind) {
      case ActionKind::kForward:
        return count(step, time.forward);
      case ActionKind::kBackwardInput:
        return count(step, time.backward_input);
      case ActionKind::kBackwardWeight:
        return count(step, time.backward_weight);
      case ActionKind::kBackward:
        if (!splits_) return count(step, time.backward);
        count(step, time.backward_input);
        return count(step, time.backward_weight);
      case ActionKind::kRecompute:
        return count(step, time.recompute);
    }
  }
  /// An R has made for B what is in its time.
  void take_back_recomputed(PredictedStep& step, const std::vector<Action>& actions) const {
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kRecompute)
        count(step, stages_[static_cast<std::size_t>(action.virtual_stage)].time.recompute, -1);
    }
  }

  [[nodiscard]] PredictedStep of_rank(int rank, const Simulation& played, double late) const {
    const auto at = static_cast<std::size_t>(rank);
    const std::vector<Action>& actions = layout_.schedule->ranks[at];
    PredictedStep step;
    step.pipeline_rank = rank;
    for (const Action& action : actions) count_action(step, action);
    take_back_recomputed(step, actions);
    if (crowding_ > 1) step = among_waiting(step, played.busy[at]);
    const double end = played.starts[at].back() + played.durations[at].back();
    const double waits = end - played.busy[at];
    step.exposed[Axis::kPipeline] += std::min(waits, late);
    step.bubble = waits - std::min(waits, late);
    step.seconds = end;
    PassTime once;
    step.optimizer = sum_over_data(rank, once);
    count(step, once);
    step.seconds += once.seconds() + step.optimizer;
    step.bytes[Axis::kPipeline] += pipeline_bytes(rank);
    return step;
  }

  /// Actions take less where others of the node wait.
  [[nodiscard]] static PredictedStep among_waiting(PredictedStep step, double busy) {
    const double walked = step.compute + step.host + step.exposed.total();
    const double part = walked > 0 ? busy / walked : 1;
    step.compute *= part;
    step.host *= part;
    for (double& seconds : step.exposed.of) seconds *= part;
    return step;
  }

  /// What a step has of the data axis beside its actions; returns the seconds of its update.
  double sum_over_data(int rank, PassTime& once) const {
    PartSize size;
    MatrixWorks matrices;
    double forward = 0, backward = 0, blocks = 0;
    bool embedding = false;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (shape_.placement[s] != rank) continue;
      const StagePart& stage = stages_[s];
      size.dense += stage.size.dense;
      size.experts += stage.size.experts;
      forward += stage.time.forward.compute;
      backward += stage.time.backward.compute;
      blocks += stage.blocks;
      embedding |= stage.embedding;
      for (std::size_t view = 0; view < matrices.size(); ++view)
        matrices[view] += stage.matrices[view];
    }
    if (layout_.zero_stage < 2) once += data_.reduce(size, {backward, blocks}, false);
    if (layout_.zero_stage == 1 || layout_.zero_stage == 2)
      once += data_.gather(size, {forward, blocks});
    if (layout_.zero_stage == 3 && embedding)
      once += data_.gather({parts_.vocabulary_size(), 0}, {0, 1});
    once += data_.parts_of(matrices);
    return data_.update(size) + data_.orthogonalize(matrices);
  }

  [[nodiscard]] double pipeline_bytes(int rank) const {
    double sends = 0;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (shape_.placement[s] != rank) continue;
      sends += s > 0 && shape_.placement[s - 1] != rank;
      sends += s + 1 < stages_.size() && shape_.placement[s + 1] != rank;
    }
    return sends * real(layout_.passes.accumulation) * stream_bytes();
  }

  const ModelConfig& model_;
  const StepLayout& layout_;
  const Cluster& cluster_;
  const PartTimes parts_;
  const DataAxis data_;
  const LinkTime neighbour_;
  const ScheduleShape shape_;
  const double crowding_;
  bool splits_ = false;
  std::vector<StagePart> stages_;
};

}  // namespace

double least_step_seconds(const ModelConfig& model, const StepLayout& layout,
                          const ScheduleOutline& outline, const Cluster& cluster) {
  const ScheduleShape shape{narrow<std::int32_t>(layout.extent(Axis::kPipeline)),
                            narrow<std::int32_t>(std::ssize(outline.placement)),
                            narrow<std::int32_t>(layout.passes.accumulation), outline.placement};
  return Prediction(model, layout, cluster, shape).least(outline.may_split);
}

PredictedStep predict_step(const ModelConfig& model, const StepLayout& layout,
                           const Cluster& cluster) {
  return Prediction(model, layout, cluster, shape_of(*layout.schedule)).run();
}

}  // namespace trireme
