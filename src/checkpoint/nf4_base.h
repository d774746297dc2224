#pragma once
// Weights as products read them where adapters were trained beside a base in NF4 (kernels/nf4):
// what merges adapters or goes on from them begins with these.

#include <set>
#include <span>
#include <string>

#include "config/model_config.h"
#include "store/state.h"

namespace trireme {

/// Those that stand in NF4: of all linear products of layers, adapted or not.
std::set<std::string> nf4_weights(const ModelConfig& model);

/// x = x' of NF4, in blocks of 64 that follow each other.
void round_to_nf4(std::span<float> x);

/// The same of those in `state` ("parameters/NAME", fp32, contiguous). Throws ConfigError where a
/// box cuts a block of the whole tensor, whose magnitude this rank does not know.
void round_to_nf4(const ModelConfig& model, State& state);

}  // namespace trireme
