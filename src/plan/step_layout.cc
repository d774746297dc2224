#include "plan/step_layout.h"

#include "optim/optimizer.h"
#include "plan/rank_part.h"

namespace trireme {

StepLayout step_layout(const RunConfig& config, const ResolvedRun& run) {
  const RunConfig::Parallel& parallel = config.parallel;
  StepLayout layout;
  layout.mesh = run.mesh;
  layout.passes = run.passes;
  layout.sequence_length = config.data.sequence_length;
  layout.device = run.device;
  layout.threads = config.run.threads_per_rank;
  layout.compute = run.compute;
  layout.fp8 = run.fp8;
  layout.sequence_parallel = parallel.cuts_tokens(run.mesh.extent(Axis::kTensor));
  layout.context_method = parallel.context_method;
  layout.recompute = parallel.recompute;
  layout.zero_stage = parallel.zero_stage;
  RunConfig::Parallel sharded = parallel;
  if (run.zero_group != 0) sharded.zero_group = run.zero_group;
  layout.zero_ranks = shard_ranks(sharded, run.mesh, StagePurpose::kTraining);
  layout.expert = parallel.expert;
  layout.expert_tensor = parallel.expert_tensor;
  layout.dispatch = config.moe.dispatch;
  layout.sums = run.sums;
  layout.wire = config.precision.wire;
  layout.update_bytes = Optimizer::bytes_of_update(config.optimizer);
  layout.whole_matrices = config.optimizer.kind == OptimizerKind::kMuon;
  // Hosts take part where tokens travel to experts or an auxiliary loss counts them.
  const bool host_counts = layout.expert_ranks() > 1 ||
                           (config.balance() == MoeBalance::kAux && config.aux_coefficient() != 0);
  layout.recorded = run.device == DeviceKind::kCuda && !host_counts &&
                    config.run.cuda_graph == CudaGraph::kAuto && !config.run.check_collectives;
  if (!run.pipeline.steps.empty()) layout.schedule = &run.pipeline.schedule();
  layout.stages = run.pipeline.stages;
  return layout;
}

}  // namespace trireme
