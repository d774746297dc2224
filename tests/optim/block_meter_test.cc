#include "optim/block_meter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "optim/optimizer.h"
#include "support/store_contents.h"

namespace trireme {
namespace {

constexpr auto kPieceElements = static_cast<std::int64_t>(BlockMeter::Piece::kRows);

/// Three blocks: a matrix of more than one piece, one beside a vector, and one that is not trained.
std::vector<ParamMeta> params_of_blocks() {
  const std::pair<Shape, int> of[] = {
      {{kPieceElements / 64 + 100, 64}, 0}, {{7, 3}, 1}, {{5}, 1}, {{4, 4}, 2}};
  std::vector<ParamMeta> params;
  for (const auto& [shape, block] : of) {
    ParamMeta meta;
    meta.name = "p" + std::to_string(params.size());
    meta.shape = shape;
    meta.block = block;
    meta.decay = shape.rank() == 2;
    meta.init = {InitKind::kNormal, 0.5F};
    meta.trainable = block < 2;
    params.push_back(meta);
  }
  return params;
}

struct BlocksRun {
  explicit BlocksRun(const ParamDistribution& distribution = {})
      : store(params_of_blocks(), DType::kBF16, kTrainingStore, {}, distribution),
        optimizer({}, store),
        meter(store, {0, 1, 2}, 4, {}) {
    store.initialise(context, 3);
    for (ParamIndex i = 0; i < 3; ++i) {
      const TensorView gradient = store.gradients().sum(i);
      for (std::int64_t at = 0; at < gradient.count(); ++at)
        gradient.as<float>()[at] = static_cast<float>((at * 7 + i) % 101 - 50) / 9;
    }
  }
  [[nodiscard]] std::string bits() const {
    std::string bits;
    for (ParamIndex i = 0; i < 4; ++i) {
      for (const TensorView& view : {store.value(i), store.copy(i), store.optimizer_state(0, i),
                                     store.optimizer_state(1, i)})
        bits.append(reinterpret_cast<const char*>(view.data), view.given() ? view.bytes() : 0);
    }
    return bits;
  }
  Context context{{}, 2, detect_isa()};
  ParamStore store;
  Optimizer optimizer;
  BlockMeter meter;
};

double norm_of(const ExactSum& sum) { return std::sqrt(sum.value()); }

double square(double value) { return value * value; }

void expect_norm(const ExactSum& found, long double squares) {
  const auto norm = static_cast<double>(std::sqrt(squares));
  EXPECT_NEAR(norm_of(found), norm, 1e-12 * norm);
}

std::vector<float> values_of(const TensorView& view) {
  return {view.as<float>(), view.as<float>() + view.count()};
}

TEST(BlockMeter, an_update_that_is_looked_at_has_the_bits_of_one_that_is_not) {
  BlocksRun plain, measured;
  for (const double scale : {1.0, 0.25}) {
    plain.optimizer.step(plain.context, 1e-2, scale);
    measured.optimizer.step(measured.context, 1e-2, scale, measured.meter);
    EXPECT_TRUE(plain.bits() == measured.bits());
  }
  EXPECT_EQ(measured.optimizer.applied_updates(), 2);
}

TEST(BlockMeter, norms_are_of_what_the_update_has_changed) {
  BlocksRun run;
  run.optimizer.step(run.context, 1e-2, 0.5);
  std::vector<std::vector<float>> before, gradients;
  for (ParamIndex i = 0; i < 3; ++i) {
    before.push_back(values_of(run.store.value(i)));
    gradients.push_back(values_of(run.store.gradients().sum(i)));
  }
  run.optimizer.step(run.context, 1e-2, 0.5, run.meter);
  for (const int block : {0, 1}) {
    long double gradient = 0, weights = 0, update = 0;  // of millions of squares
    std::int64_t elements = 0;
    for (ParamIndex i = 0; i < 3; ++i) {
      if (run.store.params()[static_cast<std::size_t>(i)].block != block) continue;
      const std::vector<float> after = values_of(run.store.value(i));
      for (std::size_t at = 0; at < after.size(); ++at) {
        const float change = after[at] - before[static_cast<std::size_t>(i)][at];
        gradient += square(gradients[static_cast<std::size_t>(i)][at]);
        weights += square(before[static_cast<std::size_t>(i)][at]);
        update += square(change);
        ++elements;
      }
    }
    const BlockSquares& found = run.meter.squares()[static_cast<std::size_t>(block)];
    EXPECT_EQ(found.elements, elements);
    expect_norm(found.gradient, gradient);
    expect_norm(found.weights, weights);
    expect_norm(found.update, update);
    EXPECT_GT(norm_of(found.update), 0);
  }
  for (const std::size_t block : {2U, 3U}) {
    EXPECT_EQ(run.meter.squares()[block].elements, 0) << "nothing of it is trained";
    EXPECT_EQ(run.meter.squares()[block].weights.value(), 0);
  }
}

TEST(BlockMeter, the_next_update_is_looked_at_by_itself) {
  BlocksRun run, other;
  run.optimizer.step(run.context, 1e-2, 0.5, run.meter);
  run.optimizer.step(run.context, 1e-2, 0.5, run.meter);
  other.optimizer.step(other.context, 1e-2, 0.5);
  other.optimizer.step(other.context, 1e-2, 0.5, other.meter);
  EXPECT_EQ(run.meter.squares()[0].update.words(), other.meter.squares()[0].update.words());
  EXPECT_EQ(run.meter.squares()[0].elements, other.meter.squares()[0].elements);
}

/// What the ranks of these distributions have together.
void expect_whole(const std::vector<ParamDistribution>& ranks, int steps) {
  BlocksRun whole;
  for (int i = 0; i < steps; ++i) whole.optimizer.step(whole.context, 1e-2, 0.5, whole.meter);
  std::vector<BlockSquares> sums(4);
  for (const ParamDistribution& distribution : ranks) {
    BlocksRun run(distribution);
    for (int i = 0; i < steps; ++i) run.optimizer.step(run.context, 1e-2, 0.5, run.meter);
    for (std::size_t block = 0; block < 4; ++block) {
      const BlockSquares& mine = run.meter.squares()[block];
      sums[block].elements += mine.elements;
      sums[block].gradient.add(mine.gradient);
      sums[block].weights.add(mine.weights);
      sums[block].update.add(mine.update);
    }
  }
  for (std::size_t block = 0; block < 4; ++block) {
    BlockSquares& expected = whole.meter.squares()[block];
    EXPECT_EQ(sums[block].elements, expected.elements);
    EXPECT_EQ(sums[block].gradient.words(), expected.gradient.words());
    EXPECT_EQ(sums[block].weights.words(), expected.weights.words());
    EXPECT_EQ(sums[block].update.words(), expected.update.words());
  }
}

TEST(BlockMeter, copies_and_shards_of_ranks_add_up_to_the_whole_in_bits) {
  std::vector<ParamDistribution> copies, shards, both;
  for (int i = 0; i < 3; ++i) copies.push_back(dense_distribution(0, {{}, {}, {3, i}}));
  for (int i = 0; i < 3; ++i) shards.push_back(dense_distribution(1, {{}, {3, i}, {}}));
  for (int i = 0; i < 4; ++i) both.push_back(dense_distribution(1, {{}, {2, i / 2}, {2, i % 2}}));
  for (const auto& ranks : {copies, shards, both}) expect_whole(ranks, 2);
}

}  // namespace
}  // namespace trireme
