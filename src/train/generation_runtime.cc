#include "train/generation_runtime.h"

namespace trireme {

GenerationRuntime::GenerationRuntime(Launch& launch, Communicator& group,
                                     const GenerationMesh& shared, const GenerationOptions& options)
    : part(shared.part_of(group.rank())),
      context(options.device, options.threads, detect_isa()),
      channels(group, shared.mesh, part, shared.pipeline, shared.config,
               {context, launch, reduction_order(shared.config, options.device.kind),
                shared.config.parallel.nccl_max_ctas}),
      params(part.declare(shared.config.model)),
      store(params.metas, shared.compute, {}, options.device, part.store),
      decoder(context, shared.config.model, params, store, options.shape,
              {TensorAxis(*channels.tensor, false),
               channels.expert_axis(part.cut.expert, shared.config.moe.dispatch),
               shared.pipeline.evaluation.ranks.at(
                   static_cast<std::size_t>(channels.pipeline_group->rank())),
               &channels.links}) {}

}  // namespace trireme
