// Stages with the ends of the model on 1, 2 and 3 tensor-parallel ranks, of one chunk and of two,
// beside float64 and its finite differences.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "model/model_ranks.h"

namespace trireme {
namespace {

constexpr std::int64_t kSequences = 2, kTokens = 3;  // of each of two micro-batches

/// Both micro-batches as one.
struct ModelReference {
  reference::Batch batch;
  std::int64_t targets = 0;
  double loss_sum = 0, first_loss_sum = 0;             ///< of both, and of the first
  std::map<std::string, reference::Values> gradients;  ///< of the loss over all targets
};

/// Matrices of the layers have a test of their own.
bool is_compared(const std::string& name) {
  for (const char* part : {"wte", "wpe", "embed_tokens", "lm_head", "norm", ".ln_", ".bias"}) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

const ModelReference& reference_of(const ModelCase& of) {
  static std::map<std::string, ModelReference> made;
  const auto [found, first] = made.try_emplace(of.name);
  ModelReference& r = found->second;
  if (!first) return r;
  r.batch = random_batch(2 * kSequences, kTokens, of.model.vocabulary, false);
  r.targets = std::count_if(r.batch.targets.begin(), r.batch.targets.end(),
                            [](std::int64_t id) { return id >= 0; });
  reference::Params params = params_of(of.model);
  const auto sum_of = [&](const reference::Batch& batch) {
    return reference::loss_sum(of.model, reference::logits_of(of.model, params, batch), batch);
  };
  r.loss_sum = sum_of(r.batch);
  reference::Batch half = r.batch;
  half.sequences = kSequences;
  for (auto* of_token : {&half.ids, &half.targets, &half.positions, &half.first_key})
    of_token->resize(kSequences * kTokens);
  r.first_loss_sum = sum_of(half);
  for (auto& [name, values] : params) {
    if (!is_compared(name)) continue;
    r.gradients[name] = reference::differences(
        values, [&] { return sum_of(r.batch) / static_cast<double>(r.targets); });
  }
  return r;
}

std::vector<ChunkRange> ranges_of(int chunks) {
  if (chunks == 1) return {{0, 2, true, true}};
  return {{0, 1, true, false}, {1, 1, false, true}};
}

/// What StageRun runs.
Schedule schedule(int chunks, bool apart) {
  Schedule schedule;
  schedule.placement.assign(static_cast<std::size_t>(chunks), 0);
  std::vector<Action>& actions = schedule.ranks.emplace_back();
  for (int i = 0; i < 2; ++i) {
    for (int chunk = 0; chunk < chunks; ++chunk)
      actions.push_back({ActionKind::kForward, chunk, i});
  }
  for (const ActionKind kind :
       {apart ? ActionKind::kBackwardInput : ActionKind::kBackward, ActionKind::kBackwardWeight}) {
    for (int i = 0; (apart || kind == ActionKind::kBackward) && i < 2; ++i) {
      for (int chunk = chunks - 1; chunk >= 0; --chunk) actions.push_back({kind, chunk, i});
    }
  }
  return schedule;
}

/// Forward and backward of both micro-batches through all chunks, in two halves or one.
class StageRun {
 public:
  StageRun(RankModel& rank, const ModelReference& reference, int chunks, bool apart)
      : rank_(rank), targets_(reference.targets), chunks_(chunks), apart_(apart) {
    for (int i = 0; i < 2; ++i)
      tokens_.emplace_back(reference.batch, i * kSequences, kSequences, false);
    StageShape shape{kSequences, kTokens, 2,
                     apart ? StagePurpose::kTrainingSplit : StagePurpose::kTraining};
    shape.chunks = chunks_of(schedule(chunks, apart), ranges_of(chunks));
    stage_ = rank.stage(shape);
  }
  double run() {
    const std::vector<MicroBatch> batches = {tokens_[0].view, tokens_[1].view};
    ready_.clear();
    rank_.store.gradients().when_complete([this](int block) { ready_.push_back(block); });
    stage_->begin_step(batches, targets_);
    stage_->rewind();
    for (int i = 0; i < 2; ++i) forward(i);
    for (int i = 0; i < 2; ++i) backward(i);
    for (int i = 0; apart_ && i < 2; ++i) {
      for (int chunk = chunks_ - 1; chunk >= 0; --chunk) stage_->backward_weight(chunk, i, last(i));
    }
    return stage_->loss_sum();
  }
  /// Blocks whose gradients were called final, in order.
  [[nodiscard]] const std::vector<int>& ready() const { return ready_; }

 private:
  static LastMicroBatch last(int i) { return i == 1 ? LastMicroBatch::kYes : LastMicroBatch::kNo; }
  void forward(int i) {
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      if (chunk > 0)
        stage_->copy(stage_->boundary(chunk, i, Boundary::kInput),
                     stage_->boundary(chunk - 1, i, Boundary::kOutput));
      stage_->forward(chunk, i);
    }
  }
  void backward(int i) {
    for (int chunk = chunks_ - 1; chunk >= 0; --chunk) {
      if (chunk < chunks_ - 1)
        stage_->copy(stage_->boundary(chunk, i, Boundary::kOutputGradient),
                     stage_->boundary(chunk + 1, i, Boundary::kInputGradient));
      if (apart_) {
        stage_->backward_input(chunk, i);
      } else {
        stage_->backward(chunk, i, last(i));
      }
    }
  }

  RankModel& rank_;
  const std::int64_t targets_;
  const int chunks_;
  const bool apart_;
  std::vector<TokensOfRank> tokens_;
  std::unique_ptr<Stage> stage_;
  std::vector<int> ready_;
};

struct StageResult {
  Gathered gradients;
  std::vector<double> loss_sums;  ///< of each rank
};

/// Every block with a value is final once.
void expect_each_block_once(std::vector<int> ready, const RankModel& rank) {
  std::sort(ready.begin(), ready.end());
  EXPECT_TRUE(std::adjacent_find(ready.begin(), ready.end()) == ready.end());
  for (ParamIndex i = 0; i < static_cast<int>(rank.params.metas.size()); ++i) {
    if (!rank.store.has_value(i)) continue;
    EXPECT_TRUE(std::binary_search(ready.begin(), ready.end(), rank.params.block_of(i)))
        << rank.params.metas[static_cast<std::size_t>(i)].name;
  }
}

std::unique_ptr<StageResult> run(const ModelCase& of, const RankSetup& setup, int chunks,
                                 bool apart) {
  auto result = std::make_unique<StageResult>();
  result->loss_sums.resize(static_cast<std::size_t>(setup.ranks));
  const ModelReference& reference = reference_of(of);
  on_threads(
      setup.ranks,
      [&](Communicator& channel) {
        RankModel rank(of, ranges_of(chunks), setup, channel);
        StageRun stage(rank, reference, chunks, apart);
        stage.run();
        result->loss_sums[static_cast<std::size_t>(channel.rank())] = stage.run();
        expect_each_block_once(stage.ready(), rank);
        result->gradients.add_gradients(rank, gradients_of(rank));
      },
      setup.shares_memory);
  return result;
}

class StageWithEnds : public testing::TestWithParam<ModelCase> {};
INSTANTIATE_TEST_SUITE_P(families, StageWithEnds, testing::ValuesIn(model_cases(2)),
                         [](const auto& of) { return of.param.name; });

TEST_P(StageWithEnds, the_parameters_are_those_of_the_family) {
  RankSetup setup;
  on_threads(1, [&](Communicator& channel) {
    const RankModel rank(GetParam(), ranges_of(1), setup, channel);
    std::map<std::string, std::vector<std::int64_t>> found;
    for (ParamIndex i = 0; i < static_cast<int>(rank.params.metas.size()); ++i) {
      const ParamMeta& param = rank.params.metas[static_cast<std::size_t>(i)];
      const auto sizes = param.shape.sizes();
      if (rank.store.has_value(i)) found[param.name] = {sizes.begin(), sizes.end()};
    }
    EXPECT_EQ(found, reference::shapes_of(GetParam().model));
  });
}

TEST_P(StageWithEnds, loss_and_gradients_equal_float64) {
  const ModelReference& reference = reference_of(GetParam());
  for (const RankSetup& setup : setups()) {
    for (const int chunks : {1, 2}) {
      SCOPED_TRACE(fmt::format("{}, {} chunks", setup.text(), chunks));
      const std::unique_ptr<StageResult> found = run(GetParam(), setup, chunks, false);
      for (const double loss_sum : found->loss_sums) {
        EXPECT_NEAR(loss_sum, reference.loss_sum, 1e-6 * reference.loss_sum);
        EXPECT_EQ(loss_sum, found->loss_sums.front());
      }
      for (const auto& [name, expected] : reference.gradients)
        expect_near(found->gradients.tensor(name), expected, 1e-5, name);
    }
  }
}

TEST_P(StageWithEnds, chunks_halves_and_recomputation_change_no_bits) {
  for (RankSetup setup : setups()) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      setup.compute = compute;
      setup.recompute = Recompute::kNone;
      const std::unique_ptr<StageResult> expected = run(GetParam(), setup, 1, false);
      for (const auto& [chunks, apart, recompute] :
           {std::tuple{1, true, Recompute::kNone}, std::tuple{2, true, Recompute::kFull},
            std::tuple{2, false, Recompute::kSelective}}) {
        setup.recompute = recompute;
        const std::unique_ptr<StageResult> found = run(GetParam(), setup, chunks, apart);
        EXPECT_EQ(found->loss_sums, expected->loss_sums) << setup.text();
        EXPECT_TRUE(found->gradients.parts() == expected->gradients.parts())
            << setup.text() << ", " << chunks << " chunks" << (apart ? ", apart" : "");
      }
    }
  }
}

TEST_P(StageWithEnds, the_others_have_the_same_gradients_where_some_parameters_are_not_trained) {
  for (RankSetup setup : setups()) {
    setup.frozen.clear();
    const std::unique_ptr<StageResult> all = run(GetParam(), setup, 2, true);
    for (const char* frozen : {"embed_tokens", "wte", "wpe", "lm_head", "norm", ".ln_", "mlp.",
                               "attn", ".bias", "layers.0", ".h.1"}) {
      setup.frozen = frozen;
      for (const bool apart : {false, true}) {
        const std::unique_ptr<StageResult> some = run(GetParam(), setup, 2, apart);
        EXPECT_EQ(some->loss_sums, all->loss_sums) << frozen;
        auto expected = all->gradients.parts();
        std::erase_if(expected, [&](const auto& part) {
          return part.first.find(frozen) != std::string::npos;
        });
        EXPECT_TRUE(some->gradients.parts() == expected)
            << setup.text() << ", without " << frozen << (apart ? ", apart" : "");
      }
    }
  }
}

/// Of every product, of some, of the second layer's alone, of a head, alone too.
std::vector<AdapterConfig> adapter_cases(const reference::Architecture& model) {
  const bool gpt2 = model.gpt2;
  const std::vector<std::string> some =
      gpt2 ? std::vector<std::string>{"attn.c_attn", "c_fc"}
           : std::vector<std::string>{"q_proj", "v_proj", "up_proj"};
  const std::vector<std::string> second = gpt2 ? std::vector<std::string>{"h.1.mlp.c_proj"}
                                               : std::vector<std::string>{"layers.1.mlp.down_proj"};
  std::vector<AdapterConfig> cases = {{2, 0.75, false, {}},
                                      {3, 1, false, some},
                                      {2, 2, false, second},
                                      {2, 0.5, true, {}},
                                      {1, 2, true, some}};
  if (model.tied) return cases;
  const std::string value = gpt2 ? "c_attn" : "v_proj";
  cases.push_back({2, 0.5, false, {value, "lm_head"}});
  cases.push_back({3, 2, true, {value, "lm_head"}});
  cases.push_back({2, 0.75, false, {"lm_head"}});
  cases.push_back({1, 1, true, {"lm_head"}});
  return cases;
}

TEST_P(StageWithEnds, adapters_have_the_loss_and_gradients_of_merged_weights_in_float64) {
  const ModelReference& plain = reference_of(GetParam());
  for (const AdapterConfig& adapters : adapter_cases(GetParam().model)) {
    const reference::Params whole = params_of(GetParam().model);
    reference::Params added = adapters_of(GetParam(), adapters);
    RowLengths lengths;
    const auto loss_sum = [&] {
      const auto params = merged(GetParam(), adapters, whole, added, &lengths);
      return reference::loss_sum(GetParam().model,
                                 reference::logits_of(GetParam().model, params, plain.batch),
                                 plain.batch);
    };
    const double expected_loss = loss_sum();
    std::map<std::string, reference::Values> expected;
    for (auto& [name, values] : added) {
      if (adapters.targets.empty() && name.find(".1.") == std::string::npos) continue;
      expected[name] = reference::differences(
          values, [&] { return loss_sum() / static_cast<double>(plain.targets); });
    }
    ASSERT_FALSE(expected.empty());
    for (RankSetup setup : setups()) {
      setup.adapters = adapters;
      SCOPED_TRACE(setup.text());
      const std::unique_ptr<StageResult> found = run(GetParam(), setup, 2, false);
      for (const double sum : found->loss_sums)
        EXPECT_NEAR(sum, expected_loss, 1e-6 * expected_loss);
      EXPECT_EQ(found->gradients.all().size(), added.size());
      for (const auto& [name, values] : expected)
        expect_near(found->gradients.tensor(name), values, 1e-5, name);
    }
  }
}

/// Beside a head v and us are those of a chunk of tokens, and its weights' gradients come with F.
TEST_P(StageWithEnds, halves_and_recomputation_change_no_bits_of_adapters) {
  std::vector<AdapterConfig> cases = {adapter_cases(GetParam().model)[3]};
  if (!GetParam().model.tied) cases.push_back({1, 2, true, {"c_proj", "o_proj", "lm_head"}});
  for (const AdapterConfig& adapters : cases) {
    for (RankSetup setup : setups()) {
      setup.adapters = adapters;
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        setup.compute = compute;
        setup.recompute = Recompute::kNone;
        const std::unique_ptr<StageResult> expected = run(GetParam(), setup, 1, false);
        for (const auto& [chunks, apart, recompute] :
             {std::tuple{1, true, Recompute::kNone}, std::tuple{2, true, Recompute::kFull},
              std::tuple{2, false, Recompute::kSelective},
              std::tuple{1, false, Recompute::kFull}}) {
          setup.recompute = recompute;
          const std::unique_ptr<StageResult> found = run(GetParam(), setup, chunks, apart);
          EXPECT_EQ(found->loss_sums, expected->loss_sums) << setup.text();
          EXPECT_TRUE(found->gradients.parts() == expected->gradients.parts()) << setup.text();
        }
      }
    }
  }
}

TEST_P(StageWithEnds, evaluation_has_the_loss_of_training) {
  const ModelReference& reference = reference_of(GetParam());
  for (const RankSetup& setup : setups()) {
    on_threads(
        setup.ranks,
        [&](Communicator& channel) {
          RankModel rank(GetParam(), ranges_of(1), setup, channel, StoreContents{});
          const TokensOfRank tokens(reference.batch, 0, kSequences, false);
          const std::unique_ptr<Stage> stage =
              rank.stage({kSequences, kTokens, 1, StagePurpose::kEvaluation});
          const double first = stage->evaluate(tokens.view);
          EXPECT_NEAR(first, reference.first_loss_sum, 1e-6 * reference.first_loss_sum)
              << setup.text();
          EXPECT_EQ(stage->evaluate(tokens.view), first) << setup.text();
        },
        setup.shares_memory);
  }
}

}  // namespace
}  // namespace trireme
