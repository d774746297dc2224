#include "train/best_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace trireme {
namespace {

TEST(BestLoss, counts_evaluations_since_the_least_loss) {
  BestLoss best;
  for (const double loss : {3.0, 2.5, 2.5, 2.7}) best.take(loss);
  EXPECT_EQ(best.loss, 2.5);
  EXPECT_EQ(best.evaluations_since, 2) << "an equal loss is no better one";
  best.take(NAN);
  EXPECT_EQ(best.loss, 2.5);
  EXPECT_EQ(best.evaluations_since, 3);
  best.take(2.25);
  EXPECT_EQ(best.evaluations_since, 0);
}

TEST(BestLoss, comes_back_from_a_checkpoint_to_the_bit) {
  BestLoss best;
  best.take(1.0 / 3);
  best.take(0.4);
  best.kept = {0.1 + 0.2, 120, true};
  Json scalars = Json::object();
  scalars["best"] = to_json(best);
  EXPECT_EQ(best_loss_of(parse_json(scalars.dump(), "scalars")), best);
  scalars["best"] = to_json(BestLoss());
  EXPECT_EQ(best_loss_of(parse_json(scalars.dump(), "scalars")), BestLoss()) << "nothing found yet";
  EXPECT_EQ(best_loss_of(Json::object()), BestLoss()) << "a checkpoint of an older version";
  EXPECT_EQ(best_loss_of(parse_json(R"({"best": {"kept": 3, "loss": "x"}})", "scalars")),
            BestLoss());
}

TEST(BestLoss, the_mean_decides_unless_a_set_is_watched) {
  const std::vector<SetLoss> losses = {{"web", 3}, {"code", 1}, {"books", 5}};
  EXPECT_EQ(watched_loss(losses, ""), 3);
  EXPECT_EQ(watched_loss(losses, "code"), 1);
  EXPECT_EQ(watched_loss({losses.data(), 1}, ""), 3);
}

}  // namespace
}  // namespace trireme
