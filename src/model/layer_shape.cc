#include "model/layer_shape.h"

#include <algorithm>

#include "base/error.h"

namespace trireme {

namespace {

/// Beside what does not change the size of a buffer, and the MLPs.
bool same_sizes(const LayerConfig& a, LayerConfig b) {
  b.attention.rope = a.attention.rope;
  b.attention.window = a.attention.window;
  b.norm.eps = a.norm.eps;
  b.mlp.ffn = a.mlp.ffn;
  b.experts = a.experts;
  b.adapters = a.adapters;
  return a == b;
}

}  // namespace

LayerConfig largest_layer(const ModelConfig& config) {
  LayerConfig largest = config.layer(0);
  for (const LayerConfig& layer : config.layers) {
    expect(same_sizes(layer, config.layer(0)), "layers that share buffers differ in size");
    largest.mlp.ffn = std::max(largest.mlp.ffn, layer.mlp.ffn);
    if (layer.experts) largest.experts = layer.experts;
    for (std::int64_t AdapterRanks::*const rank :
         {&AdapterRanks::attention_in, &AdapterRanks::q_up, &AdapterRanks::kv_up,
          &AdapterRanks::attention_out, &AdapterRanks::mlp_in, &AdapterRanks::mlp_out,
          &AdapterRanks::experts_in, &AdapterRanks::experts_out})
      largest.adapters.*rank = std::max(largest.adapters.*rank, layer.adapters.*rank);
  }
  return largest;
}

}  // namespace trireme
