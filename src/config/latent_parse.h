#pragma once

#include "config/key_reader.h"
#include "config/model_config.h"

namespace trireme {

/// What the keys say of latent attention; `keys`: those that `reader` reads. A missing one is as in
/// `otherwise`.
LatentConfig read_latent(KeyReader& reader, const Json& keys, const LatentConfig& otherwise);

/// Notes what of its heads no attention of ours or transformers' takes.
void check_latent(KeyReader& reader, const AttentionConfig& attention);

/// AttentionConfig::score_scale: transformers' yarn_apply_mscale.
double latent_score_scale(const LatentConfig& latent, const RopeConfig& rope);

}  // namespace trireme
