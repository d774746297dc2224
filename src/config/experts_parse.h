#pragma once

#include <vector>

#include "config/families.h"
#include "config/key_reader.h"
#include "config/model_config.h"

namespace trireme {

/// What a family's keys say of experts.
struct ExpertKeys {
  ExpertsConfig experts;
  std::int64_t shared_ffn = 0;    ///< of the MLP beside them
  std::vector<bool> has_experts;  ///< of each layer; the others have an MLP of their own
  double aux_coefficient = 0;
  bool aux_loss = false;
};

/// Of a family that has experts; `ffn`: its intermediate_size. Every default is written into
/// `keys`, those that `reader` reads.
ExpertKeys read_experts(KeyReader& reader, Json& keys, Family family, std::int64_t layers,
                        std::int64_t ffn);

}  // namespace trireme
