#include "model/layer_products.h"

namespace trireme {

std::vector<LayerProduct> layer_products(const LayerShape& layer) {
  const AttentionConfig& attention = layer.config.attention;
  const MlpConfig& mlp = layer.config.mlp;
  const AdapterRanks& ranks = layer.config.adapters;
  std::vector<LayerProduct> products = {{layer.hidden, attention.in_size(), ranks.attention_in},
                                        {attention.out_size(), layer.hidden, ranks.attention_out},
                                        {layer.hidden, mlp.up_size(), ranks.mlp_in},
                                        {mlp.ffn, layer.hidden, ranks.mlp_out}};
  if (const auto& latent = attention.latent) {
    products.push_back({latent->q_rank > 0 ? latent->q_rank : layer.hidden,
                        attention.heads * latent->query_dim(), ranks.q_up});
    products.push_back({latent->kv_rank, attention.heads * latent->key_value_dim(), ranks.kv_up});
  }
  return products;
}

}  // namespace trireme
