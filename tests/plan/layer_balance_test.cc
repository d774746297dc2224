#include "plan/layer_balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/math.h"
#include "model/flops.h"
#include "pipeline/schedule.h"

namespace trireme {
namespace {

using Counts = std::vector<std::int64_t>;

/// What is made small, in order: longest rank, longest stage, sum of squares.
std::tuple<std::int64_t, std::int64_t, std::int64_t> measure(const BalanceTask& task,
                                                             const Counts& counts) {
  Counts ranks(task.placement.size());
  std::int64_t stage_max = 0, squares = 0;
  for (std::size_t s = 0; s < counts.size(); ++s) {
    const std::int64_t cost = counts[s] * task.layer + (s + 1 == counts.size() ? task.head : 0);
    ranks[static_cast<std::size_t>(task.placement[s])] += cost;
    stage_max = std::max(stage_max, cost);
    squares += counts[s] * counts[s];
  }
  return {*std::max_element(ranks.begin(), ranks.end()), stage_max, squares};
}

/// The first best of all, those with more layers in later stages before the others.
Counts best_of_all(const BalanceTask& task) {
  Counts best, counts;  // `counts` from the last stage on
  const auto stages = std::ssize(task.placement);
  const auto extend = [&](const auto& self, std::int64_t left) -> void {
    const std::int64_t behind = stages - std::ssize(counts) - 1;
    for (std::int64_t n = left - behind; n >= 1; --n) {
      if (behind == 0 && n != left) return;
      counts.push_back(n);
      if (behind > 0) {
        self(self, left - n);
      } else if (const Counts found(counts.rbegin(), counts.rend());
                 best.empty() || measure(task, found) < measure(task, best)) {
        best = found;
      }
      counts.pop_back();
    }
  };
  extend(extend, task.layers);
  return best;
}

TEST(LayerBalance, is_the_best_of_all_ways_to_cut_a_small_model) {
  int different = 0;
  const auto compare = [&](const std::vector<std::int32_t>& placement) {
    for (std::int64_t layers = std::ssize(placement); layers <= 11; ++layers) {
      for (const std::int64_t head : {0, 1, 4, 6, 10, 15, 23, 40, 200}) {
        const BalanceTask task{layers, 10, head, placement};
        const Counts found = balance_layers(task), expected = best_of_all(task);
        EXPECT_EQ(found, expected)
            << layers << " layers, head " << head << ", " << placement.size() << " stages";
        Counts even;
        for (std::int64_t s = 0; s < std::ssize(placement); ++s)
          even.push_back(even_slice(layers, std::ssize(placement), s).size);
        different += found != even;
      }
    }
  };
  for (int ranks = 1; ranks <= 5; ++ranks) compare(interleaved_placement(ranks, 1));
  for (int ranks = 1; ranks <= 3; ++ranks) compare(interleaved_placement(ranks, 2));
  for (int ranks = 1; ranks <= 3; ++ranks) compare(v_placement(ranks));
  compare({1, 0, 0, 1});
  EXPECT_GT(different, 100);
}

TEST(LayerBalance, without_a_head_is_equal_numbers) {
  EXPECT_EQ(balance_layers({10, 7, 0, interleaved_placement(4, 1)}), (Counts{2, 2, 3, 3}));
  EXPECT_EQ(balance_layers({8, 7, 0, v_placement(2)}), (Counts{2, 2, 2, 2}));
}

TEST(LayerBalance, takes_layers_from_the_rank_of_a_large_head) {
  // A head of 2.4 layers, as a vocabulary of 128,256 makes it in an 8B model.
  EXPECT_EQ(balance_layers({32, 10, 24, interleaved_placement(4, 1)}), (Counts{8, 9, 9, 6}));
  // In a V the first rank has the head.
  EXPECT_EQ(balance_layers({32, 10, 24, v_placement(4)}), (Counts{4, 4, 4, 4, 4, 5, 5, 2}));
}

TEST(LayerBalance, keeps_a_layer_on_every_stage_however_large_the_head) {
  EXPECT_EQ(balance_layers({9, 1, 1000, interleaved_placement(4, 1)}), (Counts{2, 3, 3, 1}));
}

TEST(LayerBalance, cuts_large_models) {
  const Counts counts = balance_layers({4096, 987654321, 5'000'000'000, v_placement(512)});
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), 4096);
}

TEST(LayerBalance, counts_what_the_passes_compute) {
  ModelConfig model;
  LayerConfig layer_config;
  layer_config.attention.heads = layer_config.attention.kv_heads = 2;
  layer_config.attention.head_dim = 4;
  layer_config.mlp.ffn = 16;
  model.layers.assign(3, layer_config);
  model.hidden = 8;
  model.vocab_size = 100;
  // q, k, v, o: 4·8·8; gate, up, down: 3·8·16. Attention: 2·8·T, and 5·8·T backward.
  const std::int64_t products = 2 * (256 + 384), attention = 8 * 32;
  const PassCost layer = cost_of_layer(model, 32, Recompute::kNone);
  EXPECT_EQ(layer.forward, products + 2 * attention);
  EXPECT_EQ(layer.backward_input, products + 5 * attention);
  EXPECT_EQ(layer.backward_weight, products);
  EXPECT_EQ(cost_of_layer(model, 32, Recompute::kFull).backward_input,
            layer.backward_input + layer.forward);
  EXPECT_EQ(cost_of_layer(model, 32, Recompute::kSelective).all(), layer.all());
  EXPECT_EQ(cost_of_head(model).all(), 6 * 800);

  const std::int64_t flops = model_flops_per_token(model, 32);
  model.layers[1].attention.window = 8;
  EXPECT_EQ(model_flops_per_token(model, 32), flops - 6 * 8 * (32 - 8));
  EXPECT_EQ(cost_of_layer(model, 32, Recompute::kNone).forward,
            products + 2 * 8 * (32 + 8 + 32) / 3)
      << "a mean over the layers";
  model.layers[1].mlp.ffn = 17;
  EXPECT_EQ(cost_of_layer(model, 32, Recompute::kNone).backward_weight, products + 2 * 3 * 8 / 3);
  model.layers[1].attention.kv_heads = 1;
  EXPECT_EQ(cost_of_layer(model, 32, Recompute::kNone).backward_weight,
            2 * ((3 * 640 + 24 - 64) / 3))
      << "that need not be whole";
}

}  // namespace
}  // namespace trireme
