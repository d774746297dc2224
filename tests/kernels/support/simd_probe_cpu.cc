#include "kernels/common/simd.h"
#include "kernels/support/simd_probe_table.h"

namespace trireme::TRIREME_ISA {
namespace {

void probe_exp(float* y, const float* x, std::int64_t count) {
  for_each_vector(0, count, [&](std::int64_t i, auto lanes) {
    exp(F32::load(x + i, lanes)).store(y + i, lanes);
  });
}
void probe_exp2(float* y, const float* x, std::int64_t count) {
  for_each_vector(0, count, [&](std::int64_t i, auto lanes) {
    exp2(F32::load(x + i, lanes)).store(y + i, lanes);
  });
}
void probe_log(float* y, const float* x, std::int64_t count) {
  for_each_vector(0, count, [&](std::int64_t i, auto lanes) {
    log(F32::load(x + i, lanes)).store(y + i, lanes);
  });
}
void probe_sigmoid(float* y, const float* x, std::int64_t count) {
  for_each_vector(0, count, [&](std::int64_t i, auto lanes) {
    sigmoid(F32::load(x + i, lanes)).store(y + i, lanes);
  });
}
void probe_widen(float* y, const BFloat16* x, std::int64_t count) {
  for_each_vector(0, count,
                  [&](std::int64_t i, auto lanes) { F32::load(x + i, lanes).store(y + i, lanes); });
}
void probe_narrow(BFloat16* y, const float* x, std::int64_t count) {
  for_each_vector(0, count,
                  [&](std::int64_t i, auto lanes) { F32::load(x + i, lanes).store(y + i, lanes); });
}
float probe_sum(const float* x, std::int64_t count) {
  return reduce_add(F32::load(x, Tail(count)));
}
float probe_maximum(const float* x, std::int64_t count) {
  F32 m = F32::broadcast(-__builtin_inff());
  for_each_vector(0, count, [&](std::int64_t i, auto lanes) {
    m = max(m, select(lanes, F32::load(x + i, lanes), m));
  });
  return reduce_max(m);
}

}  // namespace

#ifdef __AVX512BF16__
constexpr bool kFlushes = true;
#else
constexpr bool kFlushes = false;
#endif

const SimdProbe simd_probe = {probe_exp,    probe_exp2, probe_log,     probe_sigmoid, probe_widen,
                              probe_narrow, probe_sum,  probe_maximum, F32::kWidth,   kFlushes};

}  // namespace trireme::TRIREME_ISA
