#pragma once

#include "comm/launch.h"
#include "model/decoder.h"
#include "plan/generation_mesh.h"
#include "train/runtime.h"

namespace trireme {

struct GenerationOptions {
  Device device;
  int threads = 1;
  DecoderShape shape;
};

/// The resources of a rank that generates, in order of life: a part of the model, a KV cache.
class GenerationRuntime {
 public:
  /// Collective over `group`, the ranks of `shared`, which must outlive this. Parameters are zero.
  GenerationRuntime(Launch& launch, Communicator& group, const GenerationMesh& shared,
                    const GenerationOptions& options);
  GenerationRuntime(const GenerationRuntime&) = delete;
  GenerationRuntime& operator=(const GenerationRuntime&) = delete;

  const RankPart part;
  Context context;
  Channels channels;
  const ModelParams params;
  ParamStore store;
  Decoder decoder;
};

}  // namespace trireme
