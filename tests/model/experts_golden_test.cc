// A layer's experts beside megatron-core's MoELayer in float64 (tests/golden, experts/): on one
// rank and on two that share the experts out, by both dispatch methods. Experts with adapters
// beside experts whose weights have these merged into them.

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "config/adapters.h"
#include "config/model_parse.h"
#include "model/experts.h"
#include "model/model_ranks.h"
#include "support/golden.h"
#include "support/program_device.h"
#include "tensor/transfer.h"

namespace trireme {
namespace {

/// || found - golden || / || golden || of a tensor may be as much. This program is up to 8e-7 off,
/// megatron-core in fp32 up to 4.4e-7 (make_experts_golden.py prints it). A coefficient that is 1 %
/// off shows as 3e-5 and more, another scope as 6e-4, another rule of the router as 4e-4.
constexpr double kNear = 2e-6;

struct ExpertsCase {
  std::string name;
  ModelConfig config;
  double aux_coefficient = 0, z_loss = 0;
  bool whole_batch = false;
  std::vector<std::int64_t> tokens_by_expert;
  double aux_loss_sum = 0, z_loss_sum = 0;
  std::map<std::string, std::vector<double>> others = {};  ///< in place of the golden values
};
struct ExpertsGolden {
  std::int64_t sequences = 0, tokens = 0;  ///< of each
  std::vector<ExpertsCase> cases;
  GoldenTensors tensors;

  /// Of the case, or of all.
  [[nodiscard]] const std::vector<double>& values(const ExpertsCase& of,
                                                  const std::string& name) const {
    const auto other = of.others.find(name);
    if (other != of.others.end()) return other->second;
    const auto own = tensors.find(of.name + "/" + name);
    return own != tensors.end() ? own->second.values : tensors.at(name).values;
  }
};

ExpertsCase read_case(const Json& json) {
  ExpertsCase of;
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  of.name = json.find("name")->as_string();
  of.config = read_model(*json.find("model"), problems, notes);
  expect(problems.empty(), "{}: a golden config that is refused", of.name);
  of.aux_coefficient = json.find("aux_coefficient")->as_double();
  of.z_loss = json.find("z_loss")->as_double();
  of.whole_batch = json.find("scope")->as_string() == "global";
  of.tokens_by_expert = flat_integers(*json.find("tokens_by_expert"));
  of.aux_loss_sum = json.find("aux_loss_sum")->as_double();
  of.z_loss_sum = json.find("z_loss_sum")->as_double();
  return of;
}

const ExpertsGolden& experts_golden() {
  static const ExpertsGolden golden = [] {
    const Json json = read_golden_json("experts/cases.json");
    ExpertsGolden of;
    of.sequences = json.find("sequences")->as_integer();
    of.tokens = json.find("tokens")->as_integer();
    for (const Json& one : json.find("cases")->as_array()) of.cases.push_back(read_case(one));
    of.tensors = read_tensors(golden_path("experts/tensors.safetensors"));
    return of;
  }();
  return golden;
}

/// What all ranks have found.
struct Found {
  std::map<std::string, std::vector<float>> rows;  ///< one rank's behind the other's
  std::map<std::string, std::vector<float>> gradients;
  std::vector<std::int64_t> tokens_by_expert;
  std::array<double, 2> losses = {};  ///< auxiliary, z
};

std::string name_in_branch(const std::string& name) {
  constexpr std::string_view kPrefix = "model.layers.0.mlp.";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : "";
}

/// One of the ranks that share out the experts of a layer, with sequences of its own.
class RankOfExperts {
 public:
  RankOfExperts(const ExpertsCase& of, Communicator& channel, DispatchMethod method)
      : of_(of),
        golden_(experts_golden()),
        cut_{{channel.size(), channel.rank()}, {}},
        places_(expert_places(of.config, channel.size())),
        params_(declare_params(of.config, kLayer, {cut_.expert, &places_})),
        context_(program_device(), 1, detect_isa()),
        store_(params_.metas, DType::kF32, kTrainingStore, context_.device()) {
    if (channel.size() > 1) axis_ = ExpertAxis(channel, channel, cut_, method);
    if (channel.size() > 1 && of.whole_batch) axis_.count_with(channel);
    memory_ = Buffer(DType::kF32, {ceil_div(lay_out(ArenaCursor()), 4)}, context_.device());
    lay_out(ArenaCursor(memory_.view().data));
    acts_.route = std::make_shared<ExpertRoute>();
    for (ParamIndex i = 0; i < static_cast<int>(params_.metas.size()); ++i) {
      const ParamMeta& param = params_.metas[static_cast<std::size_t>(i)];
      const std::string name = name_in_branch(param.name);
      if (name.empty()) continue;
      write(context_, param.base ? store_.base_rows(i) : store_.value(i), golden_.values(of, name));
    }
    write(context_, x_, rows_of("x"));
    write(context_, dy_, rows_of("dy"));
  }

  void run() {
    ExpertsPass experts{axis_, places_, scratch_, balance(), losses_, load_, golden_.tokens};
    const LayerPass pass{
        context_, tensor_,  context_axis_, of_.config.layer(0), {}, positions_, {}, nullptr,
        {},       &experts, adapters_};
    const ExpertsParams& params = params_.chunks[0].blocks[0].experts;
    const int block = params_.block_of(params.in.weight.first);
    const ParamStore::Lease lease = store_.acquire(block);
    const ExpertsWeights weights = weights_of(lease, params);
    ExpertsForward forward(pass, weights, acts_);
    forward.start(x_, ExpertsForward::Count::kYes);
    forward.first_product(x_);
    forward.last_product();
    forward.combine(y_, Accumulate::kNo);

    Gradients& sink = store_.gradients();
    sink.begin_step(context_);
    sink.open(context_, block);
    const ExpertsBackward backward{pass, sink, params, acts_, left_};
    backward.input(weights, backward.products(weights, dy_, backward.start(dy_)), dx_,
                   Accumulate::kNo);
    backward.weight(x_, dy_);
    sink.close(context_, block, true);
  }

  /// Called by one rank after the other.
  void add_to(Found& found) {
    const auto append = [](std::vector<float>& to, const std::vector<float>& rows) {
      to.insert(to.end(), rows.begin(), rows.end());
    };
    append(found.rows["y"], read(context_, y_));
    append(found.rows["dx"], read(context_, dx_));
    for (ParamIndex i = 0; i < static_cast<int>(params_.metas.size()); ++i) {
      const ParamMeta& param = params_.metas[static_cast<std::size_t>(i)];
      const std::string name = name_in_branch(param.name);
      if (name.empty() || !param.trainable) continue;
      const std::vector<float> values = read(context_, store_.gradients().sum(i));
      std::vector<float>& sums = found.gradients[name];
      sums.resize(values.size());
      for (std::size_t at = 0; at < values.size(); ++at) sums[at] += values[at];
    }
    std::vector<std::int32_t> load(static_cast<std::size_t>(load_.count()));
    copy_out(context_, std::as_writable_bytes(std::span(load)), load_);
    found.tokens_by_expert.resize(static_cast<std::size_t>(of_.config.layer(0).experts->count));
    for (std::size_t i = 0; i < load.size(); ++i)
      found.tokens_by_expert[i % found.tokens_by_expert.size()] += load[i];
    std::array<double, 2> losses = {};
    copy_out(context_, std::as_writable_bytes(std::span(losses)), losses_);
    for (std::size_t i = 0; i < losses.size(); ++i) found.losses[i] += losses[i];
  }

 private:
  static constexpr std::array kLayer = {ChunkRange{0, 1, false, false}};

  [[nodiscard]] std::int64_t sequences() const { return golden_.sequences / cut_.ranks(); }
  [[nodiscard]] std::vector<double> rows_of(const char* name) const {
    const std::vector<double>& all = golden_.values(of_, name);
    const auto share = std::ssize(all) / cut_.ranks();
    return {all.begin() + share * cut_.index(), all.begin() + share * (cut_.index() + 1)};
  }
  /// The formulas of INTERFACE's `moe` keys for one step.
  [[nodiscard]] ExpertsBalance balance() const {
    const ExpertsConfig& experts = *of_.config.layer(0).experts;
    const auto step = static_cast<double>(golden_.sequences * golden_.tokens);
    const double scope = of_.whole_batch ? step : static_cast<double>(golden_.tokens);
    const auto share = static_cast<double>(experts.count) / static_cast<double>(experts.chosen);
    return {static_cast<float>(of_.aux_coefficient * share / (scope * step)),
            static_cast<float>(of_.z_loss / step), of_.whole_batch};
  }
  std::int64_t lay_out(ArenaCursor arena) {
    const std::int64_t tokens = sequences() * golden_.tokens, hidden = of_.config.hidden;
    const LayerConfig& layer = of_.config.layer(0);
    const LayerShape shape{.config = layer,
                           .hidden = hidden,
                           .sequences = sequences(),
                           .tokens = tokens,
                           .residual_tokens = tokens,
                           .expert = cut_};
    for (TensorView* rows : {&x_, &y_, &dx_, &dy_}) *rows = arena.take(shape.residual());
    positions_ = arena.take(DType::kI32, {tokens});
    losses_ = arena.take(DType::kF64, {1, 2});
    load_ = arena.take(DType::kI32, {1, sequences(), layer.experts->count});
    scratch_ = lay_out_experts_scratch(arena, shape);
    adapters_ = lay_out_adapters(arena, shape, true);
    ExpertsActivations::each(
        shape, [&](const TensorSize& size, bool, TensorView& view) { view = arena.take(size); },
        acts_);
    ExpertsGradients::each(
        shape, [&](const TensorSize& size, TensorView& view) { view = arena.take(size); }, left_);
    return static_cast<std::int64_t>(arena.bytes());
  }

  const ExpertsCase& of_;
  const ExpertsGolden& golden_;
  const ExpertCut cut_;
  const std::vector<ExpertPlaces> places_;
  const ModelParams params_;
  Context context_;
  ParamStore store_;
  TensorAxis tensor_;
  ContextAxis context_axis_;
  ExpertAxis axis_;
  Buffer memory_;
  TensorView x_, y_, dx_, dy_, positions_, losses_, load_;
  ExpertsScratch scratch_;
  AdapterScratch adapters_;
  ExpertsActivations acts_;
  ExpertsGradients left_;
};

std::unique_ptr<Found> run(const ExpertsCase& of, int ranks, DispatchMethod method) {
  auto found = std::make_unique<Found>();
  on_threads(ranks, [&](Communicator& channel) {
    RankOfExperts rank(of, channel, method);
    rank.run();
    for (int turn = 0; turn < ranks; ++turn) {
      if (turn == channel.rank()) rank.add_to(*found);
      channel.barrier();
    }
  });
  return found;
}

void expect_golden(const std::vector<float>& found, const std::vector<double>& golden,
                   const std::string& name) {
  ASSERT_EQ(found.size(), golden.size()) << name;
  double off = 0, all = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    off += std::pow(static_cast<double>(found[i]) - golden[i], 2);
    all += std::pow(golden[i], 2);
  }
  EXPECT_LE(std::sqrt(off), kNear * std::sqrt(all)) << name << ": " << std::sqrt(off / all);
}

void expect_golden(const Found& found, const ExpertsCase& of) {
  const ExpertsGolden& golden = experts_golden();
  for (const auto& [name, rows] : found.rows) expect_golden(rows, golden.values(of, name), name);
  for (const auto& [name, gradient] : found.gradients)
    expect_golden(gradient, golden.values(of, "d" + name), name);
  EXPECT_EQ(found.gradients.size(), 1 + 3 * found.tokens_by_expert.size());
  EXPECT_EQ(found.tokens_by_expert, of.tokens_by_expert);
  EXPECT_NEAR(found.losses[0], of.aux_loss_sum, kNear * of.aux_loss_sum);
  EXPECT_NEAR(found.losses[1], of.z_loss_sum, kNear * of.z_loss_sum);
}

std::vector<ExpertsCase> cases() { return experts_golden().cases; }
std::string name_of(const testing::TestParamInfo<ExpertsCase>& of) { return of.param.name; }

class ExpertsBesideMegatron : public testing::TestWithParam<ExpertsCase> {};
INSTANTIATE_TEST_SUITE_P(routers, ExpertsBesideMegatron, testing::ValuesIn(cases()), name_of);

TEST_P(ExpertsBesideMegatron, outputs_and_gradients_equal_float64) {
  const std::unique_ptr<Found> alone = run(GetParam(), 1, DispatchMethod::kAllToAll);
  expect_golden(*alone, GetParam());
  // A GPU's kernels are executed on the host by one thread.
  if (program_device().kind == DeviceKind::kCuda) return;
  const std::unique_ptr<Found> to_some = run(GetParam(), 2, DispatchMethod::kAllToAll),
                               to_all = run(GetParam(), 2, DispatchMethod::kAllGather);
  expect_golden(*to_some, GetParam());
  expect_golden(*to_all, GetParam());
  EXPECT_EQ(to_some->rows, alone->rows) << "a token's rows have equal bits";
  EXPECT_EQ(to_all->rows, alone->rows);
  EXPECT_EQ(to_all->gradients, to_some->gradients);
}

using Values = std::vector<double>;

std::string weight_name(std::size_t expert, const char* projection) {
  return fmt::format("experts.{}.{}_proj.weight", expert, projection);
}
std::string adapter_name(std::size_t expert, const char* product, char factor) {
  return name_in_branch(
      expert_adapter_name(fmt::format("model.layers.0.mlp.experts.{}_proj", product),
                          static_cast<std::int64_t>(expert), factor));
}

/// A product of an expert: what its weights are called, whose rows lie one behind the other.
struct ExpertProduct {
  const char* name;
  std::vector<const char*> projections;
};
const std::vector<ExpertProduct>& expert_products() {
  static const std::vector<ExpertProduct> both = {{"gate_up", {"gate", "up"}}, {"down", {"down"}}};
  return both;
}

/// `values_of(name)` of its weights.
template <class Of>
Values joined(std::size_t expert, const ExpertProduct& product, const Of& values_of) {
  Values all;
  for (const char* projection : product.projections) {
    const auto& rows = values_of(weight_name(expert, projection));
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

struct Matrix {
  const Values& values;
  std::size_t rows, columns;
  [[nodiscard]] double at(std::size_t i, std::size_t j) const { return values[i * columns + j]; }
};
/// s a b, s a^T b, s a b^T.
Values product(double s, Matrix a, Matrix b, bool a_turned = false, bool b_turned = false) {
  const std::size_t m = a_turned ? a.columns : a.rows, k = a_turned ? a.rows : a.columns,
                    n = b_turned ? b.rows : b.columns;
  Values c(m * n);
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      for (std::size_t l = 0; l < k; ++l)
        c[i * n + j] +=
            s * (a_turned ? a.at(l, i) : a.at(i, l)) * (b_turned ? b.at(j, l) : b.at(l, j));
    }
  }
  return c;
}

/// Adapters of some products beside a case's experts, and the case with them merged.
class AdaptedExperts {
 public:
  AdaptedExperts(const ExpertsCase& of, const AdapterConfig& config)
      : adapted(of), merged(of), config_(config) {
    set_adapters(adapted.config, config);
    for (const ExpertProduct& product : expert_products()) {
      if (!config.adapts(fmt::format("model.layers.0.mlp.experts.{}_proj", product.name))) continue;
      products_.push_back(product);
      for (std::size_t expert = 0; expert < of.tokens_by_expert.size(); ++expert)
        add(expert, product);
    }
  }

  /// dA = s B^T dW, dB = s dW A^T.
  void expect_gradients(const Found& found, const Found& of_merged) const {
    std::size_t count = 0;
    for (const ExpertProduct& of : products_) {
      for (std::size_t expert = 0; expert < adapted.tokens_by_expert.size(); ++expert) {
        const std::string name_a = adapter_name(expert, of.name, 'A'),
                          name_b = adapter_name(expert, of.name, 'B');
        const Values gradient = joined(
            expert, of, [&](const std::string& name) { return of_merged.gradients.at(name); });
        const Matrix a = matrix(name_a, rank()), b = matrix(name_b, 0),
                     dw{gradient, b.rows, a.columns};
        expect_golden(found.gradients.at(name_a), product(config_.scale, b, dw, true), name_a);
        expect_golden(found.gradients.at(name_b), product(config_.scale, dw, a, false, true),
                      name_b);
        count += 2;
      }
    }
    EXPECT_EQ(found.gradients.size(), count) << "the base has none";
  }

  ExpertsCase adapted, merged;

 private:
  [[nodiscard]] std::size_t rank() const { return static_cast<std::size_t>(config_.rank); }
  /// A, of so many rows, or B.
  [[nodiscard]] Matrix matrix(const std::string& name, std::size_t rows) const {
    const Values& values = adapted.others.at(name);
    return rows > 0 ? Matrix{values, rows, values.size() / rows}
                    : Matrix{values, values.size() / rank(), rank()};
  }
  void add(std::size_t expert, const ExpertProduct& of) {
    const auto golden = [&](const std::string& name) -> const Values& {
      return experts_golden().values(merged, name);
    };
    const bool first = of.projections.size() == 2;
    const auto in = static_cast<std::size_t>(first ? merged.config.hidden
                                                   : merged.config.layer(0).experts->ffn);
    const std::string name_a = adapter_name(expert, of.name, 'A'),
                      name_b = adapter_name(expert, of.name, 'B');
    adapted.others[name_a] = numbers(rank() * in, 50 + expert, 0.4);
    adapted.others[name_b] =
        numbers(rank() * joined(expert, of, golden).size() / in, 80 + expert, 0.4);
    const Values change = product(config_.scale, matrix(name_b, 0), matrix(name_a, rank()));
    std::size_t at = 0;
    for (const char* projection : of.projections) {
      Values weight = golden(weight_name(expert, projection));
      for (double& value : weight) value += change[at++];
      merged.others[weight_name(expert, projection)] = std::move(weight);
    }
  }

  const AdapterConfig config_;
  std::vector<ExpertProduct> products_;
};

TEST_P(ExpertsBesideMegatron, adapters_have_rows_and_gradients_of_merged_weights) {
  const bool gpu = program_device().kind == DeviceKind::kCuda;
  for (const std::vector<std::string>& targets :
       {std::vector<std::string>{"experts.gate_up_proj", "mlp.experts.down_proj"},
        std::vector<std::string>{"experts.gate_up_proj"},
        std::vector<std::string>{"experts.down_proj"}}) {
    const AdaptedExperts of(GetParam(), {3, 0.75, false, targets});
    const std::unique_ptr<Found> merged = run(of.merged, 1, DispatchMethod::kAllToAll),
                                 alone = run(of.adapted, 1, DispatchMethod::kAllToAll);
    of.expect_gradients(*alone, *merged);
    for (const auto& [name, rows] : alone->rows)
      expect_golden(rows, Values(merged->rows.at(name).begin(), merged->rows.at(name).end()), name);
    if (gpu) continue;
    const std::unique_ptr<Found> to_some = run(of.adapted, 2, DispatchMethod::kAllToAll),
                                 to_all = run(of.adapted, 2, DispatchMethod::kAllGather);
    of.expect_gradients(*to_some, *merged);
    EXPECT_EQ(to_some->rows, alone->rows);
    EXPECT_EQ(to_all->rows, alone->rows);
    EXPECT_EQ(to_all->gradients, to_some->gradients);
  }
}

}  // namespace
}  // namespace trireme
