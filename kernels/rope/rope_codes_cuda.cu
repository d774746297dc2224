#include "kernels/quantize/quantize_forms.cuh"
#include "kernels/rope/rope_pair.cuh"

namespace trireme::cuda {
namespace {

/// Rows of q, k and v before their rotation. A thread reads the columns that its own rotate with
/// too, which stand in L1: another thread of its warp, mostly, has asked for them. Angles come from
/// L2, as many bytes of them as of f32 sums.
template <class In>
struct TurnedSource {
  using Value = bf16;
  const In* dout;
  std::int64_t columns;
  const std::int32_t* positions;
  const float *q_cos_sin, *k_cos_sin;
  int k_begin, v_begin, head_dim, rotated;

  /// A thread's columns all rotate, or none of them does.
  __device__ __forceinline__ void load(Own<bf16>& x, const Tile& tile) const {
    const std::int64_t row = tile.rows.origin + tile.row;
    const auto column = static_cast<int>(tile.columns.origin) + tile.column;
    const bool of_q = column < k_begin, here = tile.has_all_columns();
    const int d = (of_q ? column : column - k_begin) % head_dim, half = rotated / 2;
    const bool rotates = here && column < v_begin && d < rotated, low = d < half;
    const int other = low ? half : -half;
    const float* const angles = (of_q ? q_cos_sin : k_cos_sin) + (low ? d : d - half);
    const In* const own = dout + row * columns + column;
    const float sign = low ? 1 : -1;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      Vector<bf16, kOwn> made = {};
      if (here && tile.has_row(k)) made = load_as<bf16, kOwn>(own + k * columns);
      if (rotates && tile.has_row(k)) {
        const auto with = load_as<bf16, kOwn>(own + k * columns + other);
        const float* const at = angles + std::int64_t{positions[row + k]} * rotated;
#pragma unroll
        for (int j = 0; j < kOwn; j += 4) {
          const Vector<float, 4> cosines = trireme::cuda::load<4>(at + j),
                                 sines = trireme::cuda::load<4>(at + half + j);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            // As `rotate` by the opposite angle has it.
            made.at[j + e] =
                from_float<bf16>(fmaf(to_float(with.at[j + e]), sign * sines.at[e],
                                      __fmul_rn(to_float(made.at[j + e]), cosines.at[e])));
          }
        }
      }
      __builtin_memcpy(x.words[k], made.at, sizeof made.at);
    }
  }
};

}  // namespace

void rope_backward_codes(const RopeCodesArgs& args) {
  for_types(DType::kBF16, args.dout_dtype, [&](auto, auto in) {
    using In = decltype(in);
    const TurnedSource<In> source{static_cast<const In*>(args.dout),
                                  args.columns,
                                  args.positions,
                                  args.q_cos_sin,
                                  args.k_cos_sin,
                                  static_cast<int>(args.k_begin),
                                  static_cast<int>(args.v_begin),
                                  static_cast<int>(args.head_dim),
                                  static_cast<int>(args.rotated)};
    launch_forms<Scales::kOfRows, Scales::kOfColumns>(args.codes, source, "rope_backward_codes");
  });
}

}  // namespace trireme::cuda
