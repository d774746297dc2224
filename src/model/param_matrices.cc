#include "model/param_matrices.h"

namespace trireme {

namespace {

void mark(std::vector<ParamMeta>& metas, ParamRange range) {
  for (ParamIndex i = range.first; range.given() && i <= range.last; ++i)
    metas[static_cast<std::size_t>(i)].matrix = true;
}

}  // namespace

void mark_matrices(ModelParams& params) {
  std::vector<ParamMeta>& metas = params.metas;
  for (const ChunkParams& chunk : params.chunks) {
    for (const BlockParams& block : chunk.blocks) {
      BlockParams::each_linear(block, [&](const LinearParams& linear) {
        mark(metas, linear.weight);
        mark(metas, linear.adapter.a);
        for (const AdapterParams::Part& part : linear.adapter.parts) mark(metas, {part.b, part.b});
      });
      for (const ExpertLinearParams* linear : {&block.experts.in, &block.experts.out}) {
        mark(metas, linear->weight);
        mark(metas, linear->adapter.a);
        mark(metas, linear->adapter.b);
      }
    }
  }
}

}  // namespace trireme
