#pragma once

#include "device/context.h"
#include "kernels/common/check_args.h"

namespace trireme {

/// Of a table of segments of at most `most` rows: begins [segments + 1] i32, ascending. What a host
/// knows of one in a GPU's memory is its length.
inline void check_segments(const ArgumentChecker& check, const Context& context,
                           ConstTensorView begins, std::int64_t segments, std::int64_t most) {
  check.tensor("begins", begins, DType::kI32, {segments + 1});
  if (context.on_gpu()) return;
  const auto* begin = begins.as<std::int32_t>();
  bool ascend = begin[0] >= 0 && begin[segments] <= most;
  for (std::int64_t i = 0; i < segments; ++i) ascend = ascend && begin[i] <= begin[i + 1];
  check.that(ascend, "begins", "segments lie behind each other within the rows");
}

}  // namespace trireme
