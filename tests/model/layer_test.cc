// One transformer layer alone: a stage of one layer without the ends of the model, on 1, 2 and 3
// tensor-parallel ranks, beside float64 and its finite differences.

#include <gtest/gtest.h>

#include <map>

#include "model/model_ranks.h"
#include "support/program_device.h"

namespace trireme {
namespace {

constexpr std::int64_t kSequences = 2, kTokens = 6;  // of each of two micro-batches

/// Both micro-batches as one.
struct LayerReference {
  reference::Batch batch;
  reference::Params params;
  reference::Values input, dout, output, dinput;
  std::map<std::string, reference::Values> gradients;
};

bool of_layer(const std::string& name) {
  return name.find("layers.0.") != std::string::npos || name.find(".h.0.") != std::string::npos;
}

const LayerReference& reference_of(const ModelCase& of, bool documents = false) {
  static std::map<std::string, LayerReference> made;
  const auto [found, first] = made.try_emplace(of.name + (documents ? " documents" : ""));
  LayerReference& r = found->second;
  if (!first) return r;
  const std::int64_t sequences = 2 * kSequences;
  r.batch = random_batch(sequences, kTokens, of.model.vocabulary, documents);
  r.params = params_of(of.model);
  const auto count = static_cast<std::size_t>(sequences * kTokens * of.model.hidden);
  r.input = numbers(count, 1, 1);
  r.dout = numbers(count, 2, 1);
  r.output = reference::layer(of.model, r.params, 0, r.input, r.batch);
  const auto product = [&] {
    const reference::Values output = reference::layer(of.model, r.params, 0, r.input, r.batch);
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += r.dout[i] * output[i];
    return sum;
  };
  r.dinput = reference::differences(r.input, product);
  for (auto& [name, values] : r.params) {
    if (of_layer(name)) r.gradients[name] = reference::differences(values, product);
  }
  return r;
}

/// In which order a rank does what both micro-batches need.
enum class Halves : std::uint8_t {
  kTogether,       ///< F F BW BW
  kApart,          ///< F F B B W W
  kOneByOne,       ///< F B F W B W
  kApartAfterR,    ///< F F R R B B W W
  kTogetherAfterR  ///< F R BW F R BW
};

class LayerRun {
 public:
  LayerRun(RankModel& rank, const LayerReference& reference, Halves halves, bool documents,
           Gathered& result)
      : rank_(rank), reference_(reference), result_(result) {
    for (int i = 0; i < 2; ++i)
      tokens_.emplace_back(reference.batch, i * kSequences, kSequences, documents);
    const bool apart = halves != Halves::kTogether && halves != Halves::kTogetherAfterR;
    const bool again = halves == Halves::kApartAfterR || halves == Halves::kTogetherAfterR;
    StageShape shape{kSequences, kTokens, 2,
                     apart ? StagePurpose::kTrainingSplit : StagePurpose::kTraining};
    shape.chunks = {lone_chunk({0, 1, false, false}, 2, 2, again ? 2 : 0)};
    stage_ = rank.stage(shape);
  }
  void run(Halves halves) {
    const std::vector<MicroBatch> batches = {tokens_[0].view, tokens_[1].view};
    reduced_.clear();
    rank_.store.gradients().when_complete([this](int block) { reduce(block); });
    stage_->begin_step(batches, 1);
    stage_->rewind();
    switch (halves) {
      case Halves::kTogether:
        return f(0), f(1), bw(0), bw(1);
      case Halves::kApart:
        return f(0), f(1), b(0), b(1), w(0), w(1);
      case Halves::kOneByOne:
        return f(0), b(0), f(1), w(0), b(1), w(1);
      case Halves::kApartAfterR:
        return f(0), f(1), r(0), r(1), b(0), b(1), w(0), w(1);
      case Halves::kTogetherAfterR:
        return f(0), r(0), bw(0), f(1), r(1), bw(1);
    }
  }
  /// The sums of what was complete with each micro-batch.
  [[nodiscard]] const RankGradients& reduced() const { return reduced_; }

 private:
  void reduce(int block) {
    for (ParamIndex i = 0; i < static_cast<int>(rank_.params.metas.size()); ++i) {
      if (rank_.params.block_of(i) != block || !rank_.setup.reduces_each_micro_batch) continue;
      const std::vector<float> values = read(rank_.context, rank_.store.gradients().sum(i));
      std::vector<float>& sums = reduced_[i];
      sums.resize(values.size());
      for (std::size_t at = 0; at < values.size(); ++at) sums[at] += values[at];
    }
  }
  /// Of micro-batch i the part of both.
  static reference::Values of(const reference::Values& both, int i) {
    const auto half = static_cast<std::ptrdiff_t>(both.size()) / 2;
    return {both.begin() + half * i, both.begin() + half * (i + 1)};
  }
  void put(Boundary which, int i, const reference::Values& both) {
    write(rank_.context, stage_->boundary(0, i, which), rank_.residual_rows(of(both, i)));
  }
  void take(Boundary which, int i, const char* name) {
    result_.add_stream(name + std::to_string(i), rank_.rank, rank_.setup,
                       read(rank_.context, stage_->boundary(0, i, which)));
  }
  void f(int i) {
    put(Boundary::kInput, i, reference_.input);
    stage_->forward(0, i);
    take(Boundary::kOutput, i, "output");
  }
  void r(int i) { stage_->recompute(0, i); }
  void b(int i) {
    put(Boundary::kOutputGradient, i, reference_.dout);
    stage_->backward_input(0, i);
    take(Boundary::kInputGradient, i, "dinput");
  }
  void w(int i) { stage_->backward_weight(0, i, last(i)); }
  void bw(int i) {
    put(Boundary::kOutputGradient, i, reference_.dout);
    stage_->backward(0, i, last(i));
    take(Boundary::kInputGradient, i, "dinput");
  }
  static LastMicroBatch last(int i) { return i == 1 ? LastMicroBatch::kYes : LastMicroBatch::kNo; }

  RankModel& rank_;
  const LayerReference& reference_;
  Gathered& result_;
  std::vector<TokensOfRank> tokens_;
  std::unique_ptr<Stage> stage_;
  RankGradients reduced_;
};

std::unique_ptr<Gathered> run(const ModelCase& of, const RankSetup& setup,
                              Halves halves = Halves::kTogether, bool documents = false) {
  auto result = std::make_unique<Gathered>();
  const LayerReference& reference = reference_of(of, documents);
  on_threads(
      setup.ranks,
      [&](Communicator& channel) {
        RankModel rank(of, {{0, 1, false, false}}, setup, channel);
        LayerRun layer(rank, reference, halves, documents, *result);
        layer.run(halves);
        layer.run(halves);  // what a step leaves behind is of no use to the next
        result->add_gradients(
            rank, setup.reduces_each_micro_batch ? layer.reduced() : gradients_of(rank));
      },
      setup.shares_memory);
  return result;
}

std::vector<float> both(const Gathered& result, const std::string& name) {
  std::vector<float> values = result.tensor(name + "0");
  const std::vector<float>& second = result.tensor(name + "1");
  values.insert(values.end(), second.begin(), second.end());
  return values;
}

/// Output and gradients within `limit` of the reference.
void expect_reference(const Gathered& found, const LayerReference& reference, double limit) {
  expect_near(both(found, "output"), reference.output, limit, "output");
  expect_near(both(found, "dinput"), reference.dinput, limit, "dinput");
  EXPECT_EQ(found.all().size(), reference.gradients.size() + 4) << "parameters, output, dinput";
  for (const auto& [name, expected] : reference.gradients)
    expect_near(found.tensor(name), expected, limit, name);
}

std::string name_of(const testing::TestParamInfo<ModelCase>& of) { return of.param.name; }

/// The ends of the model are not here, so tied ones are as good as others.
std::vector<ModelCase> layer_cases() {
  std::vector<ModelCase> cases = model_cases(1);
  std::erase_if(cases, [](const ModelCase& of) { return of.name == "gpt2_untied"; });
  return cases;
}
class Layer : public testing::TestWithParam<ModelCase> {};
INSTANTIATE_TEST_SUITE_P(families, Layer, testing::ValuesIn(layer_cases()), name_of);

/// One of each kind of position.
std::vector<ModelCase> document_cases() {
  std::vector<ModelCase> cases = layer_cases();
  std::erase_if(cases, [](const ModelCase& of) {
    return of.name != "llama" && of.name != "qwen3" && of.name != "gpt2";
  });
  return cases;
}
class LayerWithDocuments : public testing::TestWithParam<ModelCase> {};
INSTANTIATE_TEST_SUITE_P(families, LayerWithDocuments, testing::ValuesIn(document_cases()),
                         name_of);

TEST_P(Layer, output_and_gradients_equal_float64) {
  for (const RankSetup& setup : setups()) {
    SCOPED_TRACE(setup.text());
    expect_reference(*run(GetParam(), setup), reference_of(GetParam()), 2e-6);
  }
}

TEST_P(Layer, bf16_stays_near_float64) {
  for (RankSetup setup : setups()) {
    setup.compute = DType::kBF16;
    SCOPED_TRACE(setup.text());
    expect_reference(*run(GetParam(), setup), reference_of(GetParam()), 4e-2);
  }
}

TEST_P(LayerWithDocuments, documents_do_not_see_each_other) {
  for (const RankSetup& setup : setups()) {
    SCOPED_TRACE(setup.text());
    expect_reference(*run(GetParam(), setup, Halves::kTogether, true),
                     reference_of(GetParam(), true), 2e-6);
  }
}

TEST_P(Layer, halves_and_recomputation_change_no_bits) {
  // Executed on the host a GPU's kernels take long, and which of them run is the same.
  const bool on_gpu = program_device().kind == DeviceKind::kCuda;
  for (RankSetup setup : setups()) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      setup.compute = compute;
      setup.recompute = Recompute::kNone;
      const std::unique_ptr<Gathered> expected = run(GetParam(), setup);
      for (const Recompute recompute :
           {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        setup.recompute = recompute;
        std::vector<Halves> orders = {Halves::kApart};
        if (!on_gpu) orders.insert(orders.end(), {Halves::kTogether, Halves::kOneByOne});
        const bool again = recompute == Recompute::kFull ||
                           (recompute == Recompute::kSelective && GetParam().model.qk_norm);
        if (again) {
          orders.push_back(Halves::kApartAfterR);
          if (!on_gpu) orders.push_back(Halves::kTogetherAfterR);
        }
        for (const Halves halves : orders) {
          const std::unique_ptr<Gathered> found = run(GetParam(), setup, halves);
          EXPECT_TRUE(found->parts() == expected->parts())
              << setup.text() << ", order " << static_cast<int>(halves);
        }
      }
    }
  }
}

TEST_P(Layer, gradients_reduced_each_micro_batch_add_up) {
  for (RankSetup setup : setups()) {
    SCOPED_TRACE(setup.text());
    setup.reduces_each_micro_batch = true;
    setup.recompute = Recompute::kNone;
    const std::unique_ptr<Gathered> together = run(GetParam(), setup);
    expect_reference(*together, reference_of(GetParam()), 2e-6);
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      setup.recompute = recompute;
      for (const Halves halves : {Halves::kApart, Halves::kOneByOne})
        EXPECT_TRUE(run(GetParam(), setup, halves)->parts() == together->parts())
            << static_cast<int>(halves);
    }
  }
}

TEST_P(Layer, threads_agree) {
  RankSetup setup;
  setup.threads = 3;
  expect_reference(*run(GetParam(), setup), reference_of(GetParam()), 2e-6);
}

}  // namespace
}  // namespace trireme
