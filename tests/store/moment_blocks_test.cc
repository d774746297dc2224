#include "store/moment_blocks.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "kernels/update/moment_codes.h"
#include "store/param_store.h"

namespace trireme {
namespace {

const OptimizerState kValues{"exp_avg"};
const OptimizerState kMagnitudes{"exp_avg_absmax", DType::kF32, {}, StateOf::kMomentBlocks};

ParamMeta param_of(const Shape& shape, TensorCut cut = {}) {
  ParamMeta param;
  param.name = "p";
  param.shape = shape;
  param.cut = std::move(cut);
  return param;
}

/// Matrices whose rows are blocks and others, cut by rows, by columns, in segments, not at all.
std::vector<ParamMeta> cases() {
  return {param_of({64, 512}),
          param_of({63, 512}, {0, {{63, 63}}}),
          param_of({96, 80}, {0, {{96, 6}}}),
          param_of({96, 80}, {0, {{32, 2}, {64, 4}}}),
          param_of({100, 96}),
          param_of({50, 3072}, {1, {{1024, 4}, {2048, 4}}}),
          param_of({50, 1536}, {1, {{1536, 3}}}),
          param_of({50, 600}, {1, {{600, 600}}}),
          param_of({1000, 33}, {0, {{1000, 1000}}}),
          param_of({5000}),
          param_of({4096}, {0, {{4096, 16}}}),
          param_of({7, 1})};
}

/// Blocks of elements of a box of a matrix or vector, or numbers of a box of blocks.
std::set<std::int64_t> numbers_in(const Box& box, const Shape& shape, std::int64_t block) {
  std::set<std::int64_t> numbers;
  const bool matrix = shape.rank() == 2;
  for (std::int64_t r = 0; r < box.shape[0]; ++r) {
    for (std::int64_t c = 0; c < (matrix ? box.shape[1] : 1); ++c) {
      const std::int64_t row = matrix ? shape[1] : 1, column = matrix ? box.offset[1] + c : 0;
      numbers.insert(((box.offset[0] + r) * row + column) / block);
    }
  }
  return numbers;
}

/// Fewer units than ranks divide them, those of all segments alike.
bool legal(const TensorCut& cut, int tensor) {
  std::set<std::int64_t> copies;
  for (const CutSegment& segment : cut.segments) {
    if (segment.units < tensor && tensor % segment.units != 0) return false;
    copies.insert(replicas_of_units(segment.units, tensor));
  }
  return copies.size() < 2;
}

struct Held {
  std::set<std::int64_t> of_elements, magnitudes;
};

/// Calls f(rank's blocks, its boxes of magnitudes) for every rank of a mesh.
template <class F>
void for_each_rank(const ParamMeta& param, int tensor, int shards, int copies, const F& f) {
  for (int t = 0; t < tensor; ++t) {
    for (int s = 0; s < shards; ++s) {
      for (int c = 0; c < copies; ++c) {
        const ParamDistribution distribution =
            dense_distribution(shards > 1 ? 2 : 0, {{tensor, t}, {shards, s}, {copies, c}});
        Held held;
        std::vector<StateTensor> boxes;
        for (const StateTensor& box :
             state_boxes({param}, {kValues, kMagnitudes}, distribution).tensors) {
          const bool values = box.name.ends_with("/exp_avg");
          if (!values && !box.name.ends_with("absmax")) continue;
          const auto numbers = numbers_in(box.box, box.global_shape, values ? kMomentBlock : 1);
          (values ? held.of_elements : held.magnitudes).insert(numbers.begin(), numbers.end());
          if (!values) boxes.push_back(box);
        }
        f(held, boxes, distribution);
      }
    }
  }
}

TEST(MomentBlocks, every_rank_has_the_magnitudes_of_its_elements_and_one_rank_saves_each) {
  int crossed = 0, fitting = 0;
  for (const ParamMeta& param : cases()) {
    const std::int64_t blocks = moment_blocks_shape(param.shape).count();
    EXPECT_EQ(blocks, (param.shape.count() + kMomentBlock - 1) / kMomentBlock);
    for (const int tensor : {1, 2, 3, 4, 6}) {
      for (const int shards : {1, 2, 3, 5}) {
        if (!legal(param.cut, tensor)) continue;
        SCOPED_TRACE(param.shape.text() + " " + std::to_string(tensor) + " x " +
                     std::to_string(shards));
        std::map<std::int64_t, std::set<int>> savers;  // of each block, which copies there are
        std::map<std::int64_t, int> copies;
        for_each_rank(
            param, tensor, shards, 2,
            [&](const Held& held, const auto& boxes, const ParamDistribution& distribution) {
              const ParamMeta of = moment_blocks_of(param, distribution.of(MeshView::kDense));
              const bool all = of.ownership == Ownership::kEveryRank;
              ++(all ? crossed : fitting);
              EXPECT_EQ(std::ssize(held.magnitudes), all ? blocks : std::ssize(held.of_elements));
              for (const std::int64_t block : held.of_elements)
                EXPECT_TRUE(held.magnitudes.contains(block)) << block;
              for (const StateTensor& box : boxes) {
                for (const std::int64_t block : numbers_in(box.box, box.global_shape, 1)) {
                  EXPECT_TRUE(savers[block].insert(box.replica).second)
                      << block << ": two ranks are copy " << box.replica;
                  copies[block] = box.replicas;
                }
              }
            });
        ASSERT_EQ(std::ssize(savers), blocks);
        for (const auto& [block, of] : savers) EXPECT_EQ(std::ssize(of), copies[block]) << block;
      }
    }
  }
  EXPECT_GT(crossed, 100);
  EXPECT_GT(fitting, 100);
}

TEST(MomentBlocks, common_meshes_fit) {
  const auto fits = [](const ParamMeta& param, int tensor, int shards) {
    return moment_blocks_of(param, {{tensor, 0}, {shards, 0}, {}}).ownership == Ownership::kRows;
  };
  // Qwen 2.5 of 0.5 B: 896 columns are 3.5 blocks.
  EXPECT_TRUE(fits(param_of({4864, 896}, {0, {{4864, 4864}}}), 2, 16));
  EXPECT_TRUE(fits(param_of({896, 4864}, {1, {{4864, 4864}}}), 1, 16));
  EXPECT_FALSE(fits(param_of({896, 4864}, {1, {{4864, 4864}}}), 2, 16)) << "9.5 blocks";
  // Llama 3 of 8 B.
  EXPECT_TRUE(fits(param_of({4096, 14336}, {1, {{14336, 14336}}}), 8, 7));
  EXPECT_TRUE(fits(param_of({128256, 4096}, {0, {{128256, 128256}}}), 8, 1000));
}

TEST(MomentBlocks, what_is_stored_has_as_many_as_the_layout_says) {
  Context context({}, 1, detect_isa());
  std::vector<ParamMeta> params;
  for (ParamMeta param : cases()) {
    param.name = "p" + std::to_string(params.size());
    params.push_back(param);
  }
  for (const int shards : {1, 3}) {
    const ParamDistribution distribution =
        dense_distribution(shards > 1 ? 1 : 0, {{2, 1}, {shards, shards - 1}, {}});
    std::vector<ParamMeta> some(params.begin() + 7, params.end());
    some.erase(some.begin() + 1);
    ParamStore store(some, DType::kF32, {false, {kMagnitudes}}, {}, distribution);
    for (ParamIndex i = 0; i < std::ssize(some); ++i) {
      const TensorView view = store.optimizer_state("exp_avg_absmax", i);
      std::fill_n(view.as<float>(), view.count(), static_cast<float>(i + 1));
    }
    // None lies on another.
    for (const StateTensor& tensor : store.state().tensors) {
      if (!tensor.name.ends_with("absmax")) continue;
      const float of = reinterpret_cast<const float*>(tensor.data)[0];
      for (std::int64_t k = 0; k < tensor.box.shape.count(); ++k)
        ASSERT_EQ(reinterpret_cast<const float*>(tensor.data)[k], of) << tensor.name;
    }
  }
}

}  // namespace
}  // namespace trireme
