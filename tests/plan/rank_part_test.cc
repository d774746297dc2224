#include "plan/rank_part.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "model/param_table.h"
#include "store/param_store.h"
#include "support/small_config.h"
#include "support/store_contents.h"

namespace trireme {
namespace {

const char* const kModels[] = {
    R"({"model_type":"llama","hidden_size":16,"num_attention_heads":4,"num_key_value_heads":2,
        "num_hidden_layers":2,"intermediate_size":20,"vocab_size":61})",
    R"({"model_type":"gpt2","n_embd":8,"n_head":4,"n_layer":1,"n_positions":13,"vocab_size":31})",
    R"({"model_type":"qwen3","hidden_size":10,"head_dim":4,"num_attention_heads":4,
        "num_key_value_heads":1,"num_hidden_layers":1,"intermediate_size":12,"vocab_size":29,
        "tie_word_embeddings":true})"};

RunConfig::Parallel parallel_of(std::int64_t stage, std::optional<std::int64_t> group = {}) {
  RunConfig::Parallel parallel;
  parallel.zero_stage = stage;
  parallel.zero_group = group;
  return parallel;
}

const Distribution& dense(const RankPart& part) { return part.store.of(MeshView::kDense); }

TEST(RankPart, shards_are_over_data_and_context_with_neighbours_in_one_group) {
  const MeshShape mesh({1, 3, 2, 2});
  const RunConfig::Parallel all = parallel_of(1), pairs = parallel_of(1, 2);
  EXPECT_EQ(shard_ranks(all, mesh, StagePurpose::kTraining), 6);
  EXPECT_EQ(shard_ranks(pairs, mesh, StagePurpose::kTraining), 2);
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const int peer = rank / 2;  // tensor is innermost
    const RankPart whole = part_of_rank(all, mesh, rank, StagePurpose::kTraining);
    EXPECT_EQ(dense(whole).shard, (AxisRank{6, peer}));
    EXPECT_EQ(dense(whole).replica, (AxisRank{1, 0}));
    EXPECT_EQ(dense(whole).tensor, (AxisRank{2, rank % 2}));
    EXPECT_EQ(whole.cut.context, (AxisRank{2, peer % 2}));
    const RankPart hybrid = part_of_rank(pairs, mesh, rank, StagePurpose::kTraining);
    EXPECT_EQ(dense(hybrid).shard, (AxisRank{2, peer % 2}));
    EXPECT_EQ(dense(hybrid).replica, (AxisRank{3, peer / 2}));
  }
}

/// 2 (tokens + 1) rows or more of a rank, nobody else's gradient, no owners of rows.
TEST(RankPart, an_embedding_has_its_gradient_in_rows_where_they_are_few) {
  const ModelConfig model = model_of(kModels[0]);
  const auto looked_up = [](const ModelConfig& of, std::int64_t tokens, int tensor = 1,
                            std::int64_t stage = 0) {
    const RankPart part = [&] {
      RankPart made = part_of_rank(parallel_of(stage), MeshShape({1, 2, 1, tensor}), 0,
                                   StagePurpose::kTraining);
      made.step_tokens = tokens;
      return made;
    }();
    const std::vector<ParamMeta> metas = part.declare(of).metas;
    for (std::size_t i = 1; i < metas.size(); ++i) EXPECT_EQ(metas[i].looked_up_most, 0);
    return metas.front().looked_up_most;
  };
  EXPECT_EQ(looked_up(model, 29), 29);  // 61 rows
  EXPECT_EQ(looked_up(model, 30), 0);
  EXPECT_EQ(looked_up(model, 0), 0);
  EXPECT_EQ(looked_up(model, 14, 2), 14);  // 31 of them
  EXPECT_EQ(looked_up(model, 15, 2), 0);
  for (const std::int64_t stage : {1, 2, 3}) EXPECT_EQ(looked_up(model, 4, 1, stage), 0);
  EXPECT_EQ(looked_up(model_of(kModels[1]), 4), 0) << "tied";
  EXPECT_EQ(looked_up(model_of(kModels[2]), 4), 0) << "tied";
  // Only the stage that has it.
  RankPart last = part_of_rank(parallel_of(0), MeshShape({1, 2, 1, 1}), 0, StagePurpose::kTraining);
  last.step_tokens = 4;
  last.chunks = {lone_chunk({1, 1, false, true}, 1)};
  for (const ParamMeta& meta : last.declare(model).metas) EXPECT_EQ(meta.looked_up_most, 0);
}

TEST(RankPart, without_zero_all_ranks_with_other_tokens_are_replicas) {
  const MeshShape mesh({1, 3, 2, 1});
  const RankPart part = part_of_rank(parallel_of(0), mesh, 4, StagePurpose::kTraining);
  EXPECT_EQ(part.store.zero_stage, 0);
  EXPECT_EQ(dense(part).shard, (AxisRank{1, 0}));
  EXPECT_EQ(dense(part).replica, (AxisRank{6, 4}));
}

TEST(RankPart, evaluation_has_shards_of_weights_alone) {
  const MeshShape mesh({1, 4, 1, 1});
  for (const std::int64_t stage : {1, 2}) {
    const RankPart part = part_of_rank(parallel_of(stage), mesh, 1, StagePurpose::kEvaluation);
    EXPECT_EQ(part.store.zero_stage, 0);
    EXPECT_EQ(dense(part).replica, (AxisRank{4, 1}));
  }
  const RankPart part = part_of_rank(parallel_of(3), mesh, 1, StagePurpose::kEvaluation);
  EXPECT_EQ(part.store.zero_stage, 3);
  EXPECT_EQ(dense(part).shard, (AxisRank{4, 1}));
}

TEST(RankPart, sequence_parallelism_is_on_where_there_is_a_tensor_axis_to_cut_tokens) {
  RunConfig::Parallel parallel;
  const auto on = [&](int tensor) {
    return part_of_rank(parallel, MeshShape({1, 1, 1, tensor}), 0, StagePurpose::kTraining)
        .cut.sequence_parallel;
  };
  EXPECT_TRUE(on(2));
  EXPECT_FALSE(on(1));
  parallel.sequence_parallel = false;
  EXPECT_FALSE(on(2));
  parallel.sequence_parallel = true;
  EXPECT_FALSE(on(1));
}

struct Mesh {
  int data, context, tensor;
  std::int64_t zero_stage;
  std::optional<std::int64_t> zero_group;
};

/// Elements of a box, row-major, of a tensor of one or two dims.
template <class F>
void for_each_element(const Box& box, const Shape& global, const F& f) {
  const bool matrix = global.rank() == 2;
  for (std::int64_t row = 0; row < box.shape[0]; ++row) {
    for (std::int64_t column = 0; column < (matrix ? box.shape[1] : 1); ++column) {
      f(matrix ? (box.offset[0] + row) * global[1] + box.offset[1] + column : box.offset[0] + row);
    }
  }
}

/// What the ranks of a mesh hold, together: each element as often as `replicas` says, by copies
/// that are numbered through.
TEST(RankPart, ranks_own_every_element_of_every_parameter_in_numbered_copies) {
  const Mesh meshes[] = {{1, 1, 1, 0, {}}, {4, 1, 1, 0, {}}, {1, 1, 4, 0, {}}, {3, 1, 2, 1, {}},
                         {2, 2, 2, 2, {}}, {5, 1, 1, 3, {}}, {2, 2, 1, 3, 2},  {4, 1, 4, 3, 2},
                         {1, 2, 4, 1, 1},  {7, 1, 2, 2, 1}};
  for (const char* text : kModels) {
    const ModelParams params = declare_params(model_of(text));
    for (const Mesh& extents : meshes) {
      const MeshShape mesh({1, extents.data, extents.context, extents.tensor});
      std::map<std::string, std::vector<std::set<int>>> holders;
      std::map<std::string, std::vector<int>> promised;
      for (int rank = 0; rank < mesh.size(); ++rank) {
        const RankPart part = part_of_rank(parallel_of(extents.zero_stage, extents.zero_group),
                                           mesh, rank, StagePurpose::kTraining);
        const ParamStore store(params.metas, DType::kF32, kTrainingStore, {}, part.store);
        for (const StateTensor& tensor : store.state().tensors) {
          const auto count = static_cast<std::size_t>(tensor.global_shape.count());
          auto& held = holders[tensor.name];
          auto& copies = promised[tensor.name];
          held.resize(count);
          copies.resize(count, tensor.replicas);
          for_each_element(tensor.box, tensor.global_shape, [&](std::int64_t i) {
            const auto at = static_cast<std::size_t>(i);
            ASSERT_TRUE(held.at(at).insert(tensor.replica).second)
                << tensor.name << " element " << i << ": two of replica " << tensor.replica;
            ASSERT_EQ(copies[at], tensor.replicas);
          });
        }
      }
      std::size_t valued = 0;
      for (const ParamMeta& param : params.metas) valued += param.shares == kNoParam;
      ASSERT_EQ(holders.size(), 3 * valued);
      for (const auto& [name, held] : holders) {
        for (std::size_t i = 0; i < held.size(); ++i) {
          const int copies = promised[name][i];
          ASSERT_EQ(static_cast<int>(held[i].size()), copies) << name << " on " << mesh.text();
          ASSERT_EQ(*held[i].rbegin(), copies - 1) << name << " on " << mesh.text();
        }
      }
    }
  }
}

/// Gradients::counted: each element of the model enters the norm once.
TEST(RankPart, one_of_the_holders_of_an_element_counts_it) {
  for (const char* text : kModels) {
    const ModelParams params = declare_params(model_of(text));
    for (const Mesh& extents :
         {Mesh{3, 1, 2, 0, {}}, Mesh{2, 2, 4, 1, {}}, Mesh{4, 1, 2, 2, 2}, Mesh{3, 1, 4, 3, {}}}) {
      const MeshShape mesh({1, extents.data, extents.context, extents.tensor});
      std::vector<std::int64_t> counted(params.metas.size());
      for (int rank = 0; rank < mesh.size(); ++rank) {
        const RankPart part = part_of_rank(parallel_of(extents.zero_stage, extents.zero_group),
                                           mesh, rank, StagePurpose::kTraining);
        const ParamStore store(params.metas, DType::kF32, kTrainingStore, {}, part.store);
        for (std::size_t i = 0; i < counted.size(); ++i)
          counted[i] += store.gradients().counted(static_cast<ParamIndex>(i)).count();
      }
      for (std::size_t i = 0; i < counted.size(); ++i)
        EXPECT_EQ(counted[i],
                  params.metas[i].shares == kNoParam ? params.metas[i].shape.count() : 0)
            << params.metas[i].name << " on " << mesh.text();
    }
  }
}

}  // namespace
}  // namespace trireme
