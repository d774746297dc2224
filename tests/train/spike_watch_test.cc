#include "train/spike_watch.h"

#include <gtest/gtest.h>

#include <cmath>

#include "telemetry/metrics_lines.h"

namespace trireme {
namespace {

/// The reasons of a series, each step known from then on.
std::vector<std::string> reasons_of(SpikeWatch& watch, const std::vector<double>& losses,
                                    const std::vector<double>& norms) {
  std::vector<std::string> reasons;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    reasons.emplace_back(watch.spike_of(losses[i], norms[i]));
    watch.add(losses[i], norms[i]);
  }
  return reasons;
}

// A reference of its own: OLMo-core's get_step_factor over lists that the latest is the end of.
bool is_spike(std::vector<double> all, const SpikeRule& rule) {
  const auto window = static_cast<std::size_t>(rule.window);
  if (all.size() > window + 1) all.erase(all.begin(), all.end() - (rule.window + 1));
  if (all.size() < std::max<std::size_t>(3, window / 2)) return false;
  const double latest = all.back(), count = static_cast<double>(all.size() - 1);
  all.pop_back();
  double sum = 0, squares = 0;
  for (const double x : all) sum += x;
  for (const double x : all) squares += (x - sum / count) * (x - sum / count);
  return latest - sum / count > rule.sigma * std::sqrt(squares / (count - 1));
}

TEST(SpikeWatch, values_by_hand) {
  // Of 1, 3: mean 2, std of a sample 1.414..., so that 3 sigma begin at 6.24.
  SpikeWatch watch(SpikeRule{3, 4});
  for (const double loss : {1.0, 3.0}) watch.add(loss, 1);
  EXPECT_EQ(watch.spike_of(6.24, 1), "");
  EXPECT_EQ(watch.spike_of(6.25, 1), kLossSpike);
  EXPECT_EQ(watch.spike_of(-100, 1), "") << "only what stands above";
  watch.add(2, 3);
  EXPECT_EQ(watch.spike_of(2, 5.1), "");
  EXPECT_EQ(watch.spike_of(2, 5.2), kNormSpike);  // mean 5/3, std 1.1547
  EXPECT_EQ(watch.spike_of(9, 9), kLossSpike) << "the first of the two is told";
}

TEST(SpikeWatch, a_recorded_series_is_judged_as_the_published_rule_judges_it) {
  std::vector<double> losses, norms;
  for (int i = 0; i < 300; ++i) {
    const double wave = std::sin(i * 1.7) + std::sin(i * 0.61);
    losses.push_back(4 * std::exp(-i / 20.0) + 0.02 * wave + (i % 97 == 60 ? 1.5 : 0));
    norms.push_back(1 + 0.1 * wave + (i % 71 == 70 ? 2.5 : 0));
  }
  for (const SpikeRule& rule : {SpikeRule{6, 128}, {3, 16}, {2, 5}, {1, 2}}) {
    SpikeWatch watch(rule);
    const std::vector<std::string> found = reasons_of(watch, losses, norms);
    int loss_spikes = 0, norm_spikes = 0;
    for (std::size_t i = 0; i < losses.size(); ++i) {
      const auto to = [&](const std::vector<double>& all) {
        return std::vector<double>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      };
      const bool loss = is_spike(to(losses), rule), norm = is_spike(to(norms), rule);
      EXPECT_EQ(found[i], loss ? kLossSpike : norm ? kNormSpike : "") << rule.window << " " << i;
      loss_spikes += loss ? 1 : 0;
      norm_spikes += norm ? 1 : 0;
    }
    EXPECT_GT(loss_spikes, 0) << rule.window;
    EXPECT_GT(norm_spikes, 0) << rule.window;
  }
}

TEST(SpikeWatch, the_first_half_of_a_window_is_never_skipped) {
  SpikeWatch watch(SpikeRule{6, 20});
  for (int i = 1; i < 10; ++i) {
    EXPECT_EQ(watch.spike_of(100, 100), "") << i;
    watch.add(1, 1 + 0.01 * (i % 2));
  }
  EXPECT_EQ(watch.spike_of(1, 100), kNormSpike) << "the tenth";
}

TEST(SpikeWatch, without_a_rule_nothing_is_known_and_nothing_saved) {
  SpikeWatch watch;
  for (int i = 0; i < 10; ++i) watch.add(1, 1);
  EXPECT_EQ(watch.spike_of(1e9, 1e9), "");
  EXPECT_TRUE(watch.json().is_null());
}

TEST(SpikeWatch, what_is_not_finite_never_enters) {
  SpikeWatch watch(SpikeRule{6, 4}), other(SpikeRule{6, 4});
  for (const double loss : {1.0, 1.5, 1.25}) {
    watch.add(loss, loss);
    watch.add(std::nan(""), 1);
    watch.add(1, HUGE_VAL);
    other.add(loss, loss);
  }
  EXPECT_EQ(watch.json().dump(), other.json().dump());
}

TEST(SpikeWatch, comes_back_from_a_checkpoint_to_the_bit) {
  const SpikeRule rule{2.5, 12};
  SpikeWatch whole(rule);
  for (int i = 0; i < 40; ++i) whole.add(1.0 / (i + 3), 0.1 * i + 1.0 / 3);
  const auto saved = [](const SpikeWatch& watch) {
    Json scalars = Json::object();
    scalars["spikes"] = watch.json();
    return parse_json(scalars.dump(), "scalars");
  };
  const SpikeWatch again(rule, saved(whole));
  EXPECT_EQ(again.json().dump(), whole.json().dump());
  EXPECT_EQ(again.json().find("losses")->as_array().size(), 12U);
  // A shorter window takes the newest, a longer one what there is.
  const Json shorter = SpikeWatch(SpikeRule{2.5, 3}, saved(whole)).json();
  EXPECT_EQ(shorter.find("losses")->dump(), Json(Json::Array{1.0 / 40, 1.0 / 41, 1.0 / 42}).dump());
  EXPECT_EQ(SpikeWatch(SpikeRule{2.5, 99}, saved(whole)).json().dump(), whole.json().dump());
  EXPECT_TRUE(SpikeWatch(std::nullopt, saved(whole)).json().is_null());
  for (const char* bad : {"{}", R"({"spikes": 3})", R"({"spikes": {"losses": [1, "x"]}})"}) {
    EXPECT_EQ(SpikeWatch(rule, parse_json(bad, "scalars")).json().dump(),
              SpikeWatch(rule).json().dump())
        << bad;
  }
}

}  // namespace
}  // namespace trireme
