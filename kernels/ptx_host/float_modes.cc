// Compiled with -frounding-math.
#include "kernels/ptx_host/float_modes.h"

#include <cfenv>

#include "kernels/ptx_host/lanes.h"
#include "kernels/ptx_host/options.h"

namespace trireme::ptx {
namespace {

constexpr int kModes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};

}  // namespace

bool run_rounded(Warp& w, const Instruction& in, std::uint32_t mask) {
  float* d = w.row<float>(in.op[0]);
  const float *a = w.row<float>(in.op[1]), *b = w.row<float>(in.op[2]),
              *c = w.row<float>(in.op[in.count > 3 ? 3 : 2]);
  const auto calc = Calc(in.detail[0]);
  const bool flush = in.detail[2] != 0;
  std::fesetround(kModes[in.detail[1]]);
  each_lane(mask, [&](int i) {
    const float r = flush ? calculate(calc, flushed(a[i]), flushed(b[i]), flushed(c[i]))
                          : calculate(calc, a[i], b[i], c[i]);
    d[i] = flush ? flushed(r) : r;
  });
  std::fesetround(FE_TONEAREST);
  return true;
}

float approximated(double exact, double error, float x) {
  const auto nearest = float(exact);
  if (!options().worst_approximations || error == 0 || double(nearest) == exact) return nearest;
  const bool up = std::bit_cast<std::uint32_t>(x) * 2654435761u >> 31;
  return float(exact * (up ? 1 + error : 1 - error));
}

}  // namespace trireme::ptx
