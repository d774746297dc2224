// A decoder that is shared out beside one that has the whole model.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "plan/mesh_rules.h"
#include "support/feed.h"
#include "support/mpi_test.h"
#include "support/program_device.h"
#include "train/generation_runtime.h"
#include "train/mesh_run.h"

namespace trireme {
namespace {

constexpr std::int64_t kCapacity = 24;

ModelConfig model_of(MeshModel kind, bool tied) {
  ModelConfig model = config_of(kind);
  model.layers.resize(5, model.layer(0));
  model.tied_embeddings = tied;
  return model;
}

struct Decoded {
  std::vector<float> logits;  ///< behind each feed, of the whole vocabulary
  std::int64_t cache_bytes = 0, weights = 0;
};

/// A prompt of several chunks, one token, one, and three. The same logits on every rank.
Decoded decode(Communicator& group, const GenerationMesh& shared) {
  GenerationOptions options;
  options.device = program_device();
  options.shape = {kCapacity, 1, 0, 5};
  GenerationRuntime runtime(test_launch(), group, shared, options);
  runtime.store.initialise(runtime.context, 7);
  disturb(runtime.context, runtime.store);
  Decoded result;
  std::int32_t next = 3;
  for (const int count : {11, 1, 1, 3}) {
    std::vector<std::int32_t> ids;
    for (int i = 0; i < count; ++i) ids.push_back(next = (next * 17 + 5) % 61);
    const std::span<const float> found = feed(runtime.decoder, ids);
    EXPECT_EQ(found.empty(), !runtime.params.chunks.front().range.head);
    std::vector<float> logits(found.begin(), found.end());
    logits.resize(61);
    group.broadcast(std::as_writable_bytes(std::span(logits)), shared.sampler());
    result.logits.insert(result.logits.end(), logits.begin(), logits.end());
  }
  EXPECT_EQ(runtime.decoder.length(0), 16);
  for (const ChunkParams& chunk : runtime.params.chunks) {
    const AxisRank place = shared.part_of(group.rank()).cut.tensor;
    result.cache_bytes += Decoder::cache_bytes(config_of_rank(shared.config.model, place),
                                               chunk.range, {0, 1, 1}, DType::kF32);
  }
  for (const StateTensor& tensor : runtime.store.state().tensors)
    result.weights += tensor.box.shape.count();
  return result;
}

double distance(const std::vector<float>& found, const std::vector<float>& expected) {
  double error = 0, largest = 0;
  EXPECT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error = std::max(error, static_cast<double>(std::abs(found[i] - expected[i])));
    largest = std::max(largest, static_cast<double>(std::abs(expected[i])));
    if (std::isnan(found[i])) return 1;
  }
  EXPECT_GT(largest, 0.1);
  return error / largest;
}

Decoded decode_alone(const ModelConfig& model) {
  const std::unique_ptr<Communicator> self = test_world().split(test_world().rank());
  return decode(*self, resolve_generation(model, {1, 0, {}, {}}));
}

void expect_as_alone(const ModelConfig& model, const Decoded& expected, int tensor, int pipeline) {
  Communicator& world = test_world();
  const GenerationMesh shared = resolve_generation(model, {world.size(), 0, tensor, pipeline});
  const Decoded found = decode(world, shared);
  if (tensor == 1) {
    EXPECT_EQ(std::memcmp(found.logits.data(), expected.logits.data(),
                          expected.logits.size() * sizeof(float)),
              0);
  }
  EXPECT_LE(distance(found.logits, expected.logits), 1e-5);

  std::int64_t sums[] = {found.cache_bytes};
  world.sum(sums);
  const std::int64_t copies = std::max<std::int64_t>(1, tensor / model.layer(0).attention.kv_heads);
  EXPECT_EQ(sums[0], expected.cache_bytes * copies);
  std::int64_t most[] = {found.weights};
  world.maximum(most);
  EXPECT_LE(most[0] * 4, shared.weight_bytes_max());
  // Both ends of a tied model hold its embedding.
  const std::int64_t at_both =
      model.tied_embeddings && tensor == 1 ? model.vocab_size * model.hidden : 0;
  EXPECT_LT(most[0] - at_both, (expected.weights - at_both) * 4 / 5);
}

class GenerationRanks : public testing::TestWithParam<MeshModel> {};
INSTANTIATE_TEST_SUITE_P(all, GenerationRanks, testing::ValuesIn(kMeshModels));

TEST_P(GenerationRanks, a_shared_decoder_has_the_logits_of_one_that_is_alone) {
  const int ranks = test_world().size();
  if (ranks == 1) GTEST_SKIP();
  int meshes = 0;
  for (const bool tied : {false, true}) {
    const ModelConfig model = model_of(GetParam(), tied);
    const Decoded expected = decode_alone(model);
    for (int tensor = 1; tensor <= ranks; ++tensor) {
      if (ranks % tensor != 0 || !tensor_extent_fits(model, tensor)) continue;
      SCOPED_TRACE(
          fmt::format("{}, {} x {}, tied {}", name_of(GetParam()), ranks / tensor, tensor, tied));
      expect_as_alone(model, expected, tensor, ranks / tensor);
      ++meshes;
    }
  }
  EXPECT_GE(meshes, ranks == 3 ? 2 : 4);
}

}  // namespace
}  // namespace trireme
