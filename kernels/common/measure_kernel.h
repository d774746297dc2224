#pragma once

#include <functional>

namespace trireme {

class Context;

/// Microseconds of `run`, which launches on the context's GPU: the median of several timings by
/// events, each of enough runs to be told from its launches.
double measure_kernel(Context& context, const std::function<void()>& run);

}  // namespace trireme
