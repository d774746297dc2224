#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trireme {
namespace {

/// More parameters than one call of the op takes, matrices and vectors.
std::vector<ParamMeta> many_params() {
  std::vector<ParamMeta> params;
  for (std::int64_t i = 0; i < 700; ++i) {
    ParamMeta meta;
    meta.name = "p" + std::to_string(i);
    meta.shape = i % 2 == 0 ? Shape{3, 2} : Shape{5};
    params.push_back(meta);
  }
  return params;
}

class GradientTest : public testing::Test {
 protected:
  void set(ParamIndex index, std::int64_t element, float value) {
    store_.gradient(index).as<float>()[element] = value;
  }
  std::unique_ptr<Communicator> world_ = make_self_communicator();
  Context context_{{}, 2, detect_isa()};
  ParamStore store_{many_params(), DType::kF32, StorePurpose::kTraining};
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

}  // namespace
}  // namespace trireme
