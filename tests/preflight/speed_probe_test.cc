#include "preflight/speed_probe.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(SpeedProbe, measures_and_hashes_products) {
  Context context({}, 1, detect_isa());
  SpeedProbe probe(context, DType::kF32);
  const Speed products = probe.products(0.1);
  EXPECT_GT(products.per_second, 0);
  EXPECT_GT(products.share, 0);
  EXPECT_LE(products.share, 1);
  EXPECT_EQ(probe.bits().size(), 32U);
  EXPECT_TRUE(probe.steady());
  EXPECT_GT(probe.copies(0.05).per_second, 0);
  EXPECT_EQ(probe.copies_to_host(0.05).per_second, 0);
}

TEST(SpeedProbe, has_equal_bits_in_equal_probes_and_others_in_others) {
  Context context({}, 1, detect_isa());
  SpeedProbe one(context, DType::kF32), same(context, DType::kF32), other(context, DType::kBF16);
  for (SpeedProbe* probe : {&one, &same, &other}) probe->products(0.01);
  EXPECT_EQ(one.bits(), same.bits());
  EXPECT_NE(one.bits(), other.bits());
}

}  // namespace
}  // namespace trireme
