#pragma once

#include <cstdint>
#include <vector>

#include "model/layer_shape.h"

namespace trireme {

/// A linear product of a layer, with this rank's columns: of attention, of the MLP that all tokens
/// have, and those that make heads of latents. Experts and routers are none.
struct LayerProduct {
  std::int64_t in = 0, out = 0;
  std::int64_t adapter_ranks = 0;  ///< AdapterRanks; 0: no adapters beside it
};
std::vector<LayerProduct> layer_products(const LayerShape& layer);

}  // namespace trireme
