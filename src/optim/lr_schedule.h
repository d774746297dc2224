#pragma once

#include <cstdint>

#include "config/run_config.h"

namespace trireme {

/// The learning rate of the k-th update, k = 1, 2, ... (skipped too), in double. W warm-up steps:
///   k <= W:          lr k / W
///   cosine, linear:  t = (k - W) / (D - W), at most 1, D = decay_end_step
///   wsd:             t = (k - S + d) / d once k > S - d, else 0;  S = steps, d = decay_steps
///   lr = min_lr + (lr - min_lr) f(t),  f = (1 + cos pi t) / 2, 1 - t, or 1 - sqrt t
/// torchtitan's and llm.c's warm-up; WSD: Hu et al. 2024.
double learning_rate(const RunConfig::LrSchedule& schedule, double lr, std::int64_t steps,
                     std::int64_t k);

}  // namespace trireme
