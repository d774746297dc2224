#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "kernels/elementwise/elementwise.h"
#include "support/gradient_norm.h"
#include "support/store_contents.h"
#include "tensor/transfer.h"

namespace trireme {
namespace {

/// More parameters than one call of the op takes, matrices and vectors.
std::vector<ParamMeta> many_params() {
  std::vector<ParamMeta> params;
  for (std::int64_t i = 0; i < 700; ++i) {
    ParamMeta meta;
    meta.name = "p" + std::to_string(i);
    meta.shape = i % 2 == 0 ? Shape{3, 2} : Shape{5};
    meta.matrix = i % 2 == 0;
    params.push_back(meta);
  }
  return params;
}

class GradientTest : public testing::Test {
 protected:
  void set(ParamIndex index, std::int64_t element, float value) {
    store_.gradients().sum(index).as<float>()[element] = value;
  }
  std::unique_ptr<Communicator> world_ = make_self_communicator();
  Context context_{{}, 2, detect_isa()};
  ParamStore store_{many_params(), DType::kF32, kTrainingStore};
};

TEST_F(GradientTest, the_norm_is_over_all_parameters) {
  EXPECT_EQ(gradient_norm(context_, store_, *world_), 0);
  set(0, 5, 2);
  set(511, 4, -4);
  set(512, 0, 5);
  set(699, 4, 6);
  EXPECT_EQ(gradient_norm(context_, store_, *world_), 9);
  set(699, 3, std::numeric_limits<float>::infinity());
  EXPECT_FALSE(std::isfinite(gradient_norm(context_, store_, *world_)));
}

TEST_F(GradientTest, the_first_parameter_that_is_not_finite_is_named) {
  set(3, 0, std::numeric_limits<float>::max());
  EXPECT_EQ(first_non_finite_gradient(context_, store_, 0), "");
  set(690, 0, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(first_non_finite_gradient(context_, store_, 0), "p690");
  set(513, 4, std::nanf(""));
  EXPECT_EQ(first_non_finite_gradient(context_, store_, 0), "p513");
  set(20, 5, std::nanf(""));
  EXPECT_EQ(first_non_finite_gradient(context_, store_, 0), "p20");
}

/// Everything that an update may change, as bytes.
std::string bits_of(const ParamStore& store) {
  std::string bits;
  for (ParamIndex i = 0; i < static_cast<int>(store.params().size()); ++i) {
    std::vector<TensorView> views = {store.value(i), store.copy(i)};
    for (std::size_t slot = 0; slot < store.contents().states.size(); ++slot)
      views.push_back(store.optimizer_state(slot, i));
    for (const TensorView& view : views) {
      bits.append(reinterpret_cast<const char*>(view.data), view.given() ? view.bytes() : 0);
    }
  }
  return bits;
}

TEST(Optimizer, what_is_not_trained_stays_as_it_is) {
  Context context({}, 1, detect_isa());
  std::vector<ParamMeta> params = many_params();
  params[1].trainable = false;
  ParamStore store(params, DType::kBF16, kTrainingStore);
  store.initialise(context, 3);
  store.gradients().sum(2).as<float>()[0] = 1;
  const auto value = [&](ParamIndex i) { return store.value(i).as<float>()[0]; };
  const float frozen = value(1), trained = value(2);
  Optimizer({}, store).step(context, 0.1, 1);
  EXPECT_EQ(value(1), frozen);
  EXPECT_NE(value(2), trained);
}

TEST(Optimizer, a_group_s_rate_and_decay_are_its_own) {
  Context context({}, 1, detect_isa());
  std::vector<ParamMeta> params = many_params();
  for (ParamIndex i = 0; i < 4; ++i) params[static_cast<std::size_t>(2 * i)].decay = true;
  params[2].lr_scale = 0.5;
  params[4].weight_decay = 0.75;
  params[5].weight_decay = 0.75;
  RunConfig::Optimizer config;
  config.kind = OptimizerKind::kLion;  // every step is of the rate
  config.weight_decay = 0.25;
  ParamStore store(params, DType::kF32, Optimizer::contents(config));
  for (ParamIndex i = 0; i < 6; ++i) {
    store.value(i).as<float>()[0] = 1;
    store.gradients().sum(i).as<float>()[0] = 1;
  }
  Optimizer(config, store).step(context, 0.5, 1);
  const auto value = [&](ParamIndex i) { return store.value(i).as<float>()[0]; };
  EXPECT_EQ(value(0), 1 - 0.125F - 0.5F);
  EXPECT_EQ(value(1), 1 - 0.5F);
  EXPECT_EQ(value(2), 1 - 0.0625F - 0.25F);
  EXPECT_EQ(value(4), 1 - 0.375F - 0.5F);
  EXPECT_EQ(value(5), 1 - 0.375F - 0.5F) << "vectors too";
}

TEST(Optimizer, averages_begin_with_the_weights_and_take_in_what_stays) {
  Context context({}, 1, detect_isa());
  RunConfig::Optimizer config;
  config.ema = 0.75;
  std::vector<ParamMeta> params = many_params();
  params[1].trainable = false;
  ParamStore store(params, DType::kF32, Optimizer::contents(config));
  store.initialise(context, 3);
  for (const ParamIndex i : {0, 2}) store.value(i).as<float>()[0] = 8;
  Optimizer optimizer(config, store);
  optimizer.begin_states(
      context, [](const ParamMeta& param, const OptimizerState&) { return param.name == "p0"; });
  const auto average = [&](ParamIndex i) { return store.optimizer_state(2, i).as<float>()[0]; };
  EXPECT_EQ(average(0), 8);
  EXPECT_EQ(average(2), 0);
  EXPECT_EQ(store.optimizer_state(2, 1).count(), 0);
  optimizer.step(context, 0, 1);
  EXPECT_EQ(average(2), 0);
  optimizer.average(context);
  EXPECT_EQ(average(0), 8);
  EXPECT_EQ(average(2), 2);
}

class EachOptimizer : public testing::TestWithParam<OptimizerKind> {};
INSTANTIATE_TEST_SUITE_P(all, EachOptimizer,
                         testing::Values(OptimizerKind::kAdamW, OptimizerKind::kLion,
                                         OptimizerKind::kScheduleFree, OptimizerKind::kMuon,
                                         OptimizerKind::kAdafactor));

TEST_P(EachOptimizer, an_update_that_is_taken_back_and_made_again_leaves_the_same_bits) {
  Context context({}, 2, detect_isa());
  RunConfig::Optimizer config;
  config.kind = GetParam();
  config.ema = 0.5;
  const StoreContents contents = Optimizer::contents(config);
  const bool muon = config.kind == OptimizerKind::kMuon, lion = config.kind == OptimizerKind::kLion;
  ParamStore store(many_params(), DType::kBF16, contents);
  store.initialise(context, 3);
  for (ParamIndex i = 0; i < 700; ++i) {
    for (std::int64_t at = 0; at < store.gradients().sum(i).count(); ++at)
      store.gradients().sum(i).as<float>()[at] = static_cast<float>(i % 13 + at) / 7;
  }
  Optimizer optimizer(config, store);
  optimizer.begin_states(context);
  optimizer.allow_undo({});
  const std::int64_t of_matrix = muon || lion ? 2 : 3, of_vector = lion ? 2 : 3;  // and the value
  const bool factored = GetParam() == OptimizerKind::kAdafactor;
  EXPECT_EQ(Optimizer::undo_bytes(config, store.params(), {}),
            350 * 4 * (factored ? (6 + 5) + (3 + 2 + 5) : of_matrix * 6 + of_vector * 5));
  optimizer.step(context, 1e-2, 0.5);
  optimizer.step(context, 1e-2, 0.25);
  const std::string before = bits_of(store);

  optimizer.step(context, 1e30, std::numeric_limits<float>::infinity(), Optimizer::Undo::kPossible);
  EXPECT_NE(bits_of(store), before);
  optimizer.undo(context);
  store.refresh_copies(context);
  optimizer.refresh_copies(context);
  EXPECT_EQ(bits_of(store), before);
  EXPECT_EQ(optimizer.applied_updates(), 2);

  ParamStore other(many_params(), DType::kBF16, contents);
  other.initialise(context, 3);
  for (ParamIndex i = 0; i < 700; ++i)
    copy_in(context, other.gradients().sum(i),
            {store.gradients().sum(i).data,
             static_cast<std::size_t>(store.gradients().sum(i).bytes())});
  Optimizer straight(config, other);
  straight.begin_states(context);
  for (const double scale : {0.5, 0.25, 1.0}) straight.step(context, 1e-2, scale);
  optimizer.step(context, 1e-2, 1);
  EXPECT_EQ(bits_of(store), bits_of(other));
}

TEST(Optimizer, schedule_free_goes_on_with_the_weights_of_its_average) {
  Context context({}, 1, detect_isa());
  RunConfig::Optimizer config;
  config.kind = OptimizerKind::kScheduleFree;
  const auto begin = [&](ParamStore& store) {
    store.initialise(context, 3);
    for (ParamIndex i = 0; i < 700; ++i) store.gradients().sum(i).as<float>()[0] = 1;
  };
  ParamStore straight(many_params(), DType::kF32, Optimizer::contents(config));
  begin(straight);
  Optimizer whole(config, straight);
  whole.begin_states(context);
  whole.step(context, 1e-3, 1);
  whole.step(context, 2e-3, 1);
  Json scalars = Json::object();
  whole.save(scalars);
  ParamStore second(many_params(), DType::kF32, Optimizer::contents(config));
  begin(second);
  Optimizer resumed(config, second);
  for (ParamIndex i = 0; i < 700; ++i) {
    cast(context, second.value(i), straight.value(i));
    for (const std::size_t slot : {0, 1})
      cast(context, second.optimizer_state(slot, i), straight.optimizer_state(slot, i));
  }
  resumed.set_applied_updates(2);
  resumed.restore(parse_json(scalars.dump(), "scalars"));
  resumed.refresh_copies(context);
  EXPECT_EQ(bits_of(second), bits_of(straight));
  whole.step(context, 1e-3, 1);
  resumed.step(context, 1e-3, 1);
  EXPECT_EQ(bits_of(second), bits_of(straight));
  Optimizer anew(config, second);
  anew.set_applied_updates(2);
  anew.restore(Json::object());
  anew.step(context, 1e-3, 1);
  whole.step(context, 1e-3, 1);
  EXPECT_NE(bits_of(second), bits_of(straight)) << "an average that begins with this step";
  for (const char* text : {R"({"schedule_free": 1})", R"({"schedule_free": {"lr_max": 1}})",
                           R"({"schedule_free": {"lr_max": -1, "weight_sum": 1}})"}) {
    EXPECT_THROW(anew.restore(parse_json(text, "scalars")), DataError) << text;
  }
}

}  // namespace
}  // namespace trireme
