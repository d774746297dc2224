#include "train/runtime.h"

#include "base/math.h"
#include "comm/communicator.h"
#include "config/adapters.h"
#include "model/model_blocks.h"
#include "parallel/rank_order_channel.h"
#include "plan/memory.h"

namespace trireme {

namespace {

/// Null on a CPU.
std::unique_ptr<GpuChannels> gpus_of(Communicator& ranks, const ChannelMaker& maker) {
  if (!maker.context.on_gpu()) return nullptr;
  return make_gpu_channels(ranks, maker.context, maker.launch.flight_recorder(),
                           maker.launch.transfer_faults(), narrow<int>(maker.nccl_max_ctas));
}

/// A channel for the memory that the context computes in. Collective over the ranks of `gpus`.
/// `sums_bytes`: of the largest operand that it sums.
std::unique_ptr<Communicator> channel_of(Communicator& group, std::string_view name,
                                         const ChannelMaker& maker, GpuChannels* gpus,
                                         std::int64_t sums_bytes = 0) {
  if (gpus != nullptr) {
    auto channel = gpus->channel(group, name);
    if (group.size() == 1 || maker.order == ReductionOrder::kLibrary) return channel;
    return std::make_unique<RankOrderChannel>(std::move(channel), maker.context, sums_bytes);
  }
  if (group.size() == 1) return make_self_communicator();
  return maker.order == ReductionOrder::kLibrary ? make_library_sum_channel(group, name)
                                                 : group.channel(name);
}

/// Of the channels that add in rank order themselves: a GPU's.
LargestSums sums_on_gpu(const RunConfig& config, const ResolvedRun& run, StagePurpose purpose,
                        int rank) {
  if (run.device != DeviceKind::kCuda || run.sums != ReductionOrder::kRank) return {};
  return largest_sums(config.model, memory_request(config, run, purpose, rank));
}

/// Equal for tensor-parallel ranks that hold the same key and value heads.
int same_heads_color(const AxisRank& tensor, std::int64_t kv_heads) {
  return tensor.index / replicas_of_units(kv_heads, tensor.extent);
}

/// The ranks that hold the first and the last virtual stage; every other rank is alone.
int ends_color(const Pipeline& pipeline, const Communicator& group) {
  const int first = pipeline.placement.front(), last = pipeline.placement.back();
  const bool an_end = group.rank() == first || group.rank() == last;
  return an_end ? 0 : 1 + group.rank();
}

int data_rank(int stage_rank, const RankPart& part) {
  return stage_rank / (part.cut.context.extent * part.cut.tensor.extent);
}

/// Whether ranks that share an expert have anything to tell each other of its weights.
bool joins_experts_tensor(const RunConfig& config, const RankPart& part) {
  return part.fp8 || adapts_experts(config.model) || config.optimizer.state == MomentType::k8bit ||
         config.optimizer.kind == OptimizerKind::kAdafactor;
}

/// The ranks of `stage` that hold one copy together, counted by shards, within one by the tensor
/// axis; alone where no update asks. `other`: equal for those that hold parts of the same.
std::unique_ptr<Communicator> parts_of(Communicator& stage, const RunConfig& config,
                                       const AxisRank& replica, int other) {
  if (config.optimizer.kind != OptimizerKind::kMuon) return make_self_communicator();
  return stage.split(other * replica.extent + replica.index);
}

const std::vector<ProgramStep>& steps_of(const Program& program,
                                         const Communicator& pipeline_group) {
  return program.ranks.at(static_cast<std::size_t>(pipeline_group.rank()));
}

}  // namespace

ExpertChannels::ExpertChannels(Communicator& stage, const RankPart& part, const RunConfig& config,
                               const ChannelMaker& maker, GpuChannels* gpus)
    : ranks(stage.split(stage.rank() / part.cut.expert.ranks())),
      peers(stage.split(part.cut.expert.index())),
      shard_group(peers->split(part.store.of(MeshView::kExpert).replica.index)),
      copy_group(peers->split(part.store.of(MeshView::kExpert).shard.index)),
      tensor_group(ranks->split(part.cut.expert.expert.index)),
      counted(stage.split(
          config.moe.scope == BalanceScope::kGlobal ? 0 : data_rank(stage.rank(), part))),
      dispatch(channel_of(*ranks, "expert", maker, gpus)),
      tensor(joins_experts_tensor(config, part)
                 ? channel_of(*tensor_group, "expert.tensor", maker, gpus, maker.sums.expert_tensor)
                 : make_self_communicator()),
      shard_reduce(channel_of(*shard_group, "expert.reduce", maker, gpus, maker.sums.data_shards)),
      shard_gather(channel_of(*shard_group, "expert.gather", maker, gpus)),
      copy_reduce(channel_of(*copy_group, part.store.sharded() ? "expert.copies" : "expert.reduce",
                             maker, gpus, maker.sums.data_copies)),
      parts_group(parts_of(stage, config, part.store.of(MeshView::kExpert).replica,
                           part.cut.expert.expert.index)),
      parts(channel_of(*parts_group, "expert.parts", maker, gpus)) {}

Channels::Channels(Communicator& replica, const MeshShape& mesh, const RankPart& part,
                   const Pipeline& pipeline, const RunConfig& config, const ChannelMaker& maker)
    : peers(replica.split(mesh.group_color({Axis::kData, Axis::kContext}, replica.rank()))),
      shard_group(peers->split(part.store.of(MeshView::kDense).replica.index)),
      copy_group(peers->split(part.store.of(MeshView::kDense).shard.index)),
      tensor_group(replica.split(mesh.group_color({Axis::kTensor}, replica.rank()))),
      same_heads_group(tensor_group->split(
          same_heads_color(part.cut.tensor, config.model.layer(0).attention.kv_heads))),
      context_group(replica.split(mesh.group_color({Axis::kContext}, replica.rank()))),
      pipeline_group(replica.split(mesh.group_color({Axis::kPipeline}, replica.rank()))),
      ends_group(pipeline_group->split(ends_color(pipeline, *pipeline_group))),
      gpus(gpus_of(replica, maker)),
      pipeline_gpus(gpus_of(*pipeline_group, maker)),
      shard_reduce(
          channel_of(*shard_group, "data.reduce", maker, gpus.get(), maker.sums.data_shards)),
      shard_gather(channel_of(*shard_group, "data.gather", maker, gpus.get())),
      copy_reduce(channel_of(*copy_group, part.store.sharded() ? "data.copies" : "data.reduce",
                             maker, gpus.get(), maker.sums.data_copies)),
      tensor(channel_of(*tensor_group, "tensor", maker, gpus.get(), maker.sums.tensor)),
      same_heads(
          channel_of(*same_heads_group, "tensor.heads", maker, gpus.get(), maker.sums.same_heads)),
      context(channel_of(*context_group, "context", maker, gpus.get(), maker.sums.context)),
      ends(channel_of(*ends_group, "pipeline.ends", maker, pipeline_gpus.get())),
      parts_group(
          parts_of(replica, config, part.store.of(MeshView::kDense).replica,
                   mesh.group_color({Axis::kData, Axis::kContext, Axis::kTensor}, replica.rank()))),
      parts(channel_of(*parts_group, "data.parts", maker, gpus.get())),
      links(*pipeline_group, pipeline.placement, [&](Communicator& group, const char* name) {
        return channel_of(group, name, maker, pipeline_gpus.get());
      }) {
  if (!config.model.has_experts()) return;
  const std::unique_ptr<Communicator> stage =
      replica.split(mesh.group_color({Axis::kData, Axis::kContext, Axis::kTensor}, replica.rank()));
  experts.emplace(*stage, part, config, maker, gpus.get());
}

ExpertAxis Channels::expert_axis(const ExpertCut& cut, DispatchMethod method) const {
  ExpertAxis axis;
  if (!experts) return axis;
  if (cut.ranks() > 1) axis = ExpertAxis(*experts->ranks, *experts->dispatch, cut, method);
  axis.count_with(*experts->counted);
  return axis;
}

ViewChannels Channels::of_updates() const {
  ViewChannels of{{{tensor.get(), shard_reduce.get(), parts.get()}, {}}};
  if (experts) of[1] = {experts->tensor.get(), experts->shard_reduce.get(), experts->parts.get()};
  return of;
}

ByAxis Channels::sum(std::int64_t TrafficCounters::*counter) const {
  const auto of = [counter](std::initializer_list<const Communicator*> channels) {
    std::int64_t sum = 0;
    for (const Communicator* channel : channels) sum += channel->counters().*counter;
    return sum;
  };
  ByAxis sum;
  sum[Axis::kPipeline] = of({ends.get()}) + links.counters().*counter;
  sum[Axis::kData] = of({shard_reduce.get(), shard_gather.get(), copy_reduce.get()});
  sum[Axis::kContext] = of({context.get()});
  sum[Axis::kTensor] = of({tensor.get(), same_heads.get()});
  sum[shard_group->size() > 1 ? Axis::kData : Axis::kTensor] += of({parts.get()});
  if (!experts) return sum;
  sum[Axis::kData] +=
      of({experts->shard_reduce.get(), experts->shard_gather.get(), experts->copy_reduce.get()});
  sum[Axis::kExpert] = of({experts->dispatch.get(), experts->tensor.get()});
  sum[experts->shard_group->size() > 1 ? Axis::kData : Axis::kExpert] += of({experts->parts.get()});
  return sum;
}

Runtime::Runtime(Launch& launch_, const RunConfig& config_, const ResolvedRun& run,
                 const RuntimeOptions& options_)
    : Runtime(launch_, launch_.replica(), config_, run, options_) {}

Runtime::Runtime(Launch& launch_, Communicator& replica, const RunConfig& config_,
                 const ResolvedRun& run, const RuntimeOptions& options_)
    : launch(launch_),
      config(config_),
      model(config.model),
      options(options_),
      mesh(run.mesh),
      pipeline(run.pipeline),
      part(part_of_rank(config, run, replica.rank(), options.purpose)),
      context(options.device, options.threads, detect_isa()),
      channels(replica, mesh, part, pipeline, config,
               {context, launch, run.sums, config.parallel.nccl_max_ctas,
                sums_on_gpu(config, run, options.purpose, replica.rank())}),
      params(part.declare(model)),
      store(params.metas, run.compute,
            options.purpose == StagePurpose::kEvaluation ? StoreContents{}
                                                         : Optimizer::contents(config.optimizer),
            options.device, part.store),
      stage(context, model, params, store,
            part.stage(run.passes.micro, config.data.sequence_length, config.parallel.recompute,
                       options.device.kind),
            {TensorAxis(*channels.tensor, part.cut.sequence_parallel),
             ContextAxis(*channels.context, part.cut.context_method, config.data.sequence_length),
             channels.expert_axis(part.cut.expert, config.moe.dispatch),
             expert_places(model, part.cut.expert.expert.extent, part.expert_placement)}),
      evaluator(steps_of(pipeline.evaluation, *channels.pipeline_group), stage, &channels.links),
      replica_(replica) {
  expect(options.device.kind == run.device, "a run resolved for another device");
  context.set_deterministic(config.run.deterministic);
  context.set_attention_backend(*options.attention);
  make_executors();
  // What grows during a step frees what was there, and waits for transfers that wait for others.
  if (context.on_gpu())
    context.scratch(static_cast<std::size_t>(
        scratch_bytes(model, memory_request(config, run, options.purpose, replica.rank()))));
  make_gathers();
  if (options.purpose == StagePurpose::kEvaluation) return;
  std::vector<ReductionChannels> reductions{
      {MeshView::kDense, *channels.shard_reduce, *channels.copy_reduce}};
  if (channels.experts)
    reductions.push_back(
        {MeshView::kExpert, *channels.experts->shard_reduce, *channels.experts->copy_reduce});
  reduction.emplace(context, store, reductions, config.precision.wire);
  stage.set_balance(balance_of(run));
  stage.set_z_loss(config.stability.z_loss);
  sum_partial_gradients();
  if (config.stability.noise_scale) {
    noise.emplace(context, store, part.cut.tensor);
    store.gradients().when_first([this](int block) { noise->add(block); });
  }
  if (find_shared_home(params.metas) != kNoParam)
    tied_weight.emplace(context, store, *channels.ends);
  optimizer.emplace(config.optimizer, store, channels.of_updates());
  if (config.log.blocks) {
    const auto blocks = static_cast<int>(block_names(model).size());
    block_meter.emplace(store, places_of_blocks(params, model), blocks, context.device(),
                        Optimizer::piece(config.optimizer));
  }
  if (config.balance() == MoeBalance::kBias)
    router_bias.emplace(params, store, config.moe.bias_rate);
  if (config.parallel.speculative_step) optimizer->allow_undo(context.device());
}

void Runtime::make_gathers() {
  using GatherChannels = std::vector<WeightGather::Channel>;
  if (part.store.sharded()) {
    GatherChannels gathers{{MeshView::kDense, *channels.shard_gather}};
    if (channels.experts) gathers.push_back({MeshView::kExpert, *channels.experts->shard_gather});
    gather.emplace(context, store, gathers);
  }
  if (part.fp8) {
    fp8_weights.emplace_back(context, store, *channels.shard_gather, *channels.tensor);
    if (channels.experts) {
      fp8_weights.emplace_back(context, store, *channels.experts->shard_gather,
                               *channels.experts->tensor, MeshView::kExpert);
    }
  }
}

void Runtime::make_executors() {
  for (const StepPlan& step : pipeline.steps) {
    stage.take_step_of(step.micro_batches);
    executors_.try_emplace(step.micro_batches, steps_of(step.program, *channels.pipeline_group),
                           stage, &channels.links);
  }
}

void Runtime::sum_partial_gradients() {
  using Of = PartialGradients::Of;
  const bool tokens_cut = part.cut.sequence_parallel;
  if (part.cut.tensor.extent > 1) {
    partial.emplace(context, store, Of::kTensorAxis, tokens_cut, *channels.tensor);
    same_heads.emplace(context, store, Of::kSameHeads, tokens_cut, *channels.same_heads);
  }
  if (adapts_experts(model) && part.cut.expert.tensor.extent > 1)
    of_experts.emplace(context, store, Of::kExpertTensor, tokens_cut, *channels.experts->tensor);
}

double Runtime::sum_of_losses(double mine) const {
  double sum = part.cut.tensor.index == 0 ? mine : 0;
  replica().sum(std::span(&sum, 1));
  return sum;
}

StageBalance Runtime::balance_of(const ResolvedRun& run) const {
  StageBalance balance;
  if (!channels.experts) return balance;
  const RunConfig::Moe& moe = config.moe;
  if (config.balance() == MoeBalance::kAux) balance.aux_coefficient = config.aux_coefficient();
  balance.z_loss = moe.z_loss;
  balance.whole_batch = moe.scope == BalanceScope::kGlobal;
  balance.sequence_tokens = config.data.sequence_length;
  balance.pass_tokens = run.passes.micro * run.passes.data_ranks * config.data.sequence_length;
  return balance;
}

void Runtime::weights_changed(Copies copies) {
  const bool trained = optimizer && optimizer->reads_apart() && read_ == Read::kTrained;
  if (copies == Copies::kStale) {
    store.refresh_copies(context);
    if (trained) optimizer->refresh_copies(context);
  }
  if (!model.adapters) {  // what they stand beside does not change
    for (QuantizedRefresh& refresh : fp8_weights) {
      refresh.run([&](ParamIndex index) {
        return trained ? optimizer->read_value(context, index) : store.value(index);
      });
    }
  }
  if (gather) gather->weights_changed();
}

void Runtime::read(Read weights) {
  if (!optimizer || !optimizer->reads_apart()) return;
  read_ = weights;
  weights_changed(Copies::kStale);
}

}  // namespace trireme
