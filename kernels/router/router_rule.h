#pragma once

#include <cstdint>

namespace trireme {

enum class RouterScore : std::uint8_t { kSoftmax, kSigmoid };

/// How experts are chosen and weighted: router.h has the formula.
struct RouterRule {
  RouterScore score = RouterScore::kSoftmax;
  std::int64_t chosen = 1;  ///< k
  bool normalized = false;
  std::int64_t groups = 1, groups_chosen = 1;
  float scale = 1;
};

inline constexpr std::int64_t kRouterExpertsMax = 1024;
inline constexpr std::int64_t kRouterChosenMax = 32, kRouterGroupsMax = 32;
/// What normalized sigmoids' sums begin with.
inline constexpr float kRouterSumMin = 1e-20F;

}  // namespace trireme
