#include "kernels/common/column_pieces.cuh"
#include "kernels/common/fast_divide.cuh"
#include "kernels/common/gpu_scratch.h"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/quantize/quantize_rows.cuh"
#include "kernels/rope/rope_pair.cuh"

// A head is shared by `lanes` neighbouring threads of a warp: a power of two, as many as hold its
// D/2 pairs, kWidth pairs each (16 bytes of the low half, 16 of the high one). A thread takes
// several heads of one token, so that it looks the angles up once and has many loads under way.
// Heads that do not fit that (odd sizes, addresses not aligned, more than 32 lanes) take a warp
// each and are read again for each pass.

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kForwardHeads = 4, kBackwardHeads = 2;  ///< of a thread

/// Where the elements of pair j stand in a head: j and j + R/2, which rotate together, for j < R/2;
/// behind them pairs that do not rotate.
struct Place {
  int low, apart;  ///< the high one stands at low + apart
  bool rotates;
};
template <class Args>
__device__ __forceinline__ Place place_of(const Args& args, std::int64_t pair) {
  const int j = static_cast<int>(pair), turning = static_cast<int>(args.rotated / 2),
            half = static_cast<int>(args.head_dim / 2);
  if (j < turning) return {j, turning, true};
  return {j + turning, half - turning, false};
}
/// The other way round.
struct PairOf {
  int index;
  bool high;
};
template <class Args>
__device__ __forceinline__ PairOf pair_of_element(const Args& args, int d) {
  const int turning = static_cast<int>(args.rotated / 2),
            half = static_cast<int>(args.head_dim / 2);
  if (d < 2 * turning) return {d < turning ? d : d - turning, d >= turning};
  return {d < half + turning ? d - turning : d - half, d >= half + turning};
}
/// The weights that are meant by those that are stored.
__device__ __forceinline__ Pair shifted(Pair weight, float offset) {
  return {__fadd_rn(weight.low, offset), __fadd_rn(weight.high, offset)};
}

template <class T, int kWidth>
struct Group {
  Vector<T, kWidth> low, high;
};
template <int kWidth, class T>
__device__ __forceinline__ Group<T, kWidth> load_group(const T* head, const Place& place) {
  return {load<kWidth>(head + place.low), load<kWidth>(head + place.low + place.apart)};
}
template <class T, int kWidth, class In>
__device__ __forceinline__ Group<T, kWidth> load_group_as(const In* head, const Place& place) {
  return {load_as<T, kWidth>(head + place.low), load_as<T, kWidth>(head + place.low + place.apart)};
}
template <int kWidth, class T>
__device__ __forceinline__ unsigned order_of(const Group<T, kWidth>& group) {
  return max(order_of(group.low), order_of(group.high));
}
template <int kWidth, class T>
__device__ __forceinline__ void store_group(T* head, const Place& place,
                                            const Group<T, kWidth>& group) {
  store(head + place.low, group.low);
  store(head + place.low + place.apart, group.high);
}
template <int kWidth, class T>
__device__ __forceinline__ Pair pair_of(const Group<T, kWidth>& group, int k) {
  return {to_float(group.low.at[k]), to_float(group.high.at[k])};
}

template <int kWidth>
struct Angles {
  float cosine[kWidth], sine[kWidth];
};
/// Of the pairs at `place`, which all rotate or all do not.
template <int kWidth>
__device__ __forceinline__ Angles<kWidth> load_angles(const float* position, const Place& place) {
  constexpr int kPart = kWidth < 4 ? kWidth : 4;
  Angles<kWidth> angles;
  if (!place.rotates) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) angles.cosine[k] = 1, angles.sine[k] = 0;
    return angles;
  }
  const float* cosines = position + place.low;
#pragma unroll
  for (int first = 0; first < kWidth; first += kPart) {
    const Vector<float, kPart> c = load<kPart>(cosines + first),
                               s = load<kPart>(cosines + place.apart + first);
#pragma unroll
    for (int k = 0; k < kPart; ++k)
      angles.cosine[first + k] = c.at[k], angles.sine[first + k] = s.at[k];
  }
  return angles;
}

/// Every thread of `lanes` neighbours gets their sum; the whole warp calls.
__device__ __forceinline__ float lanes_sum(float value, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2)
    value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

__device__ __forceinline__ float inverse_root(float squares, std::int64_t dim, double eps) {
  return 1.0F / sqrtf(squares / static_cast<float>(dim) + static_cast<float>(eps));
}

/// How threads are given to tokens and heads.
struct Plan {
  int lanes, lane_bits;  ///< of a head; 1 << lane_bits
  int slots;             ///< of a token: slot s takes heads s, s + slots, ...
  int items;             ///< threads a token wants: lanes x slots
  int tokens;            ///< of a block at a time
  FastDivide by_items;

  Plan(std::int64_t heads, int heads_of_thread, int lanes_)
      : lanes(lanes_),
        lane_bits(0),
        slots(static_cast<int>(blocks_for(heads, heads_of_thread))),
        items(lanes * slots),
        tokens(items < kThreads ? kThreads / items : 1),
        by_items(items) {
    while (1 << lane_bits < lanes) ++lane_bits;
  }
};

/// What a thread does in one turn of its block.
struct Work {
  bool any;
  std::int64_t token;
  int slot, lane;
};
/// `item` of the tokens that start at `first`.
__device__ __forceinline__ Work work_of(const Plan& plan, std::int64_t first, int item,
                                        std::int64_t tokens) {
  const unsigned token = plan.by_items.quotient(static_cast<unsigned>(item));
  const int rest = static_cast<int>(plan.by_items.remainder(static_cast<unsigned>(item), token));
  return {static_cast<int>(token) < plan.tokens && first + token < tokens, first + token,
          rest >> plan.lane_bits, rest & (plan.lanes - 1)};
}

struct BlockMaximum {
  float partials[kWarps];
};

/// kSign -1 turns back: the backward pass without a norm, which may leave a maximum.
template <class T, class In, bool kNorm, int kSign>
__global__ void __launch_bounds__(kThreads) forward_kernel(RopeForwardArgs args, Plan plan) {
  constexpr int kWidth = kWide<T>, kHeads = kForwardHeads;
  const std::int64_t dim = args.head_dim, half = dim / 2;
  const int heads = static_cast<int>(args.heads);
  const std::int64_t first = std::int64_t{blockIdx.x} * plan.tokens;
  unsigned order = 0;
  // As many turns for every thread: lanes of a head exchange sums.
  for (int base = 0; base < plan.tokens * plan.items; base += kThreads) {
    const Work work = work_of(plan, first, base + static_cast<int>(threadIdx.x), args.tokens);
    const int j = work.lane * kWidth;
    const Place place = place_of(args, j);
    const bool any = work.any && j < half;
    const auto wanted = [&](int i) { return any && work.slot + i * plan.slots < heads; };
    const auto head_of = [&](int i) { return work.slot + i * plan.slots; };

    const std::int64_t position = any ? args.positions[work.token] : 0;
    Group<T, kWidth> group[kHeads] = {};
    const In* in = static_cast<const In*>(args.in) + work.token * args.in_stride;
#pragma unroll
    for (int i = 0; i < kHeads; ++i)
      if (wanted(i)) group[i] = load_group_as<T, kWidth>(in + head_of(i) * dim, place);
    Group<T, kWidth> weight = {};
    if (kNorm && any) weight = load_group<kWidth>(static_cast<const T*>(args.weight), place);
    Angles<kWidth> angles = {};
    if (any) angles = load_angles<kWidth>(args.cos_sin + position * args.rotated, place);

#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      float rstd = 1;
      if constexpr (kNorm) {
        float squares = 0;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          const Pair x = pair_of<kWidth>(group[i], k);
          squares = fmaf(x.low, x.low, fmaf(x.high, x.high, squares));
        }
        rstd = inverse_root(lanes_sum(squares, plan.lanes), dim, args.eps);
      }
      if (!wanted(i)) continue;
      if (kNorm && work.lane == 0) args.rstd[work.token * heads + head_of(i)] = rstd;
      Group<T, kWidth> out;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        Pair n = pair_of<kWidth>(group[i], k);
        if constexpr (kNorm) {
          // Rounded, as the norm apart from the rotation would have stored it.
          const Pair w = shifted(pair_of<kWidth>(weight, k), args.weight_offset);
          n = {to_float(from_float<T>(n.low * rstd * w.low)),
               to_float(from_float<T>(n.high * rstd * w.high))};
        }
        const Pair turned = rotate(n, angles.cosine[k], kSign * angles.sine[k]);
        out.low.at[k] = from_float<T>(turned.low);
        out.high.at[k] = from_float<T>(turned.high);
      }
      store_group(static_cast<T*>(args.out) + work.token * args.out_stride + head_of(i) * dim,
                  place, out);
      if (kSign < 0) order = max(order, order_of(out));
    }
  }
  if (kSign < 0 && args.amax != nullptr)
    join_maximum<kThreads>(args.amax, order, smem<BlockMaximum>().partials);
}

/// One warp a head, of any size and alignment.
template <class T, class In, bool kNorm, int kSign>
__global__ void __launch_bounds__(kThreads) any_forward_kernel(RopeForwardArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (row >= args.tokens * args.heads) return;
  const std::int64_t token = row / args.heads, head = row % args.heads;
  const std::int64_t dim = args.head_dim, half = dim / 2;
  const In* in = static_cast<const In*>(args.in) + token * args.in_stride + head * dim;
  T* out = static_cast<T*>(args.out) + token * args.out_stride + head * dim;
  const float* angles = args.cos_sin + args.positions[token] * args.rotated;
  const auto* weight = static_cast<const T*>(args.weight);
  const auto value = [&](std::int64_t d) { return to_float(from_float<T>(to_float(in[d]))); };
  unsigned order = 0;
  float rstd = 1;
  if constexpr (kNorm) {
    float squares = 0;
    for (std::int64_t d = lane; d < dim; d += 32) {
      const float x = value(d);
      squares = fmaf(x, x, squares);
    }
    rstd = inverse_root(warp_sum(squares), dim, args.eps);
    if (lane == 0) args.rstd[row] = rstd;
  }
  for (std::int64_t j = lane; j < half; j += 32) {
    const Place place = place_of(args, j);
    const int low = place.low, high = place.low + place.apart;
    Pair n{value(low), value(high)};
    if constexpr (kNorm) {
      const Pair w = shifted({to_float(weight[low]), to_float(weight[high])}, args.weight_offset);
      n = {to_float(from_float<T>(n.low * rstd * w.low)),
           to_float(from_float<T>(n.high * rstd * w.high))};
    }
    const Pair turned = place.rotates ? rotate(n, angles[low], kSign * angles[high]) : n;
    out[low] = from_float<T>(turned.low);
    out[high] = from_float<T>(turned.high);
    if (kSign < 0) order = max(order, order_of(Vector<T, 2>{out[low], out[high]}));
  }
  if (kSign < 0 && args.amax != nullptr) join_maximum(args.amax, order);
}

// ---- backward with a norm ----

/// The threads that share a head of D elements by 16-byte accesses; 0: it does not suit them.
template <class T, class Args>
int lanes_for(const Args& args, bool aligned) {
  const std::int64_t half = args.head_dim / 2, turning = args.rotated / 2;
  if (!aligned || half % kWide<T> != 0 || turning % kWide<T> != 0 || half / kWide < T >> 32)
    return 0;
  int lanes = 1;
  while (lanes * kWide<T> < half) lanes *= 2;
  return lanes;
}

/// Tokens, or where a warp takes a head what a block takes at once.
std::int64_t groups_of(const RopeBackwardArgs& args) {
  std::int64_t groups = args.tokens;
  for_type(args.dtype, [&](auto type) {
    const int lanes = lanes_for<decltype(type)>(args, true);
    if (lanes > 0) groups = blocks_for(groups, Plan(args.heads, kBackwardHeads, lanes).tokens);
  });
  return groups;
}
std::int64_t pieces_of(const RopeBackwardArgs& args) {
  return gpu_scratch::pieces_of_rows(groups_of(args), gpu_scratch::kRopePieces);
}

template <class T>
struct Gradient {
  Pair dn, n, g;
};
/// What element pair k gives: the rotation undone, the normalised input, dn weight.
template <class T>
__device__ __forceinline__ Gradient<T> gradient_of(Pair dout, Pair in, Pair weight, float cosine,
                                                   float sine, float rstd) {
  Gradient<T> result;
  result.dn = rotate(dout, cosine, -sine);
  result.n = {in.low * rstd, in.high * rstd};
  result.g = {result.dn.low * weight.low, result.dn.high * weight.high};
  return result;
}
template <class T>
__device__ __forceinline__ Pair din_of(const Gradient<T>& d, float mean, float rstd) {
  return {fmaf(-d.n.low, mean, d.g.low) * rstd, fmaf(-d.n.high, mean, d.g.high) * rstd};
}

template <int kWidth>
struct ThreadSums {
  BlockMaximum maximum;
  float of_thread[kThreads][2 * kWidth];
};

/// A piece: every pieces-th group of tokens. A thread's columns stay: dweight in registers.
template <class T, class In>
__global__ void __launch_bounds__(kThreads, gpu_scratch::kRopeBlocks)
    backward_kernel(RopeBackwardArgs args, Plan plan, int pieces) {
  constexpr int kWidth = kWide<T>, kHeads = kBackwardHeads;
  auto& sums = smem<ThreadSums<kWidth>>().of_thread;
  const std::int64_t dim = args.head_dim, half = dim / 2;
  const int heads = static_cast<int>(args.heads);
  const int j = (static_cast<int>(threadIdx.x) & (plan.lanes - 1)) * kWidth;
  const Place place = place_of(args, j);
  Group<T, kWidth> weight = {};
  if (j < half) weight = load_group<kWidth>(static_cast<const T*>(args.weight), place);
  Pair dweight[kWidth] = {};
  unsigned order = 0;

  const auto visit = [&](int piece, int turn, int) {
    const std::int64_t first = std::int64_t{turn * pieces + piece} * plan.tokens;
    for (int base = 0; base < plan.tokens * plan.items; base += kThreads) {
      const Work work = work_of(plan, first, base + static_cast<int>(threadIdx.x), args.tokens);
      const bool any = work.any && j < half;
      const auto head_of = [&](int i) { return work.slot + i * plan.slots; };
      const auto wanted = [&](int i) { return any && head_of(i) < heads; };
      const std::int64_t position = any ? args.positions[work.token] : 0;
      Group<T, kWidth> dout[kHeads] = {}, in[kHeads] = {};
      float rstd[kHeads] = {};
      const In* dout_at = static_cast<const In*>(args.dout) + work.token * args.dout_stride;
      const T* in_at = static_cast<const T*>(args.in) + work.token * args.in_stride;
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        if (!wanted(i)) continue;
        dout[i] = load_group_as<T, kWidth>(dout_at + head_of(i) * dim, place);
        in[i] = load_group<kWidth>(in_at + head_of(i) * dim, place);
        rstd[i] = args.rstd[work.token * heads + head_of(i)];
      }
      Angles<kWidth> angles = {};
      if (any) angles = load_angles<kWidth>(args.cos_sin + position * args.rotated, place);
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        const auto gradient = [&](int k) {
          return gradient_of<T>(pair_of<kWidth>(dout[i], k), pair_of<kWidth>(in[i], k),
                                shifted(pair_of<kWidth>(weight, k), args.weight_offset),
                                angles.cosine[k], angles.sine[k], rstd[i]);
        };
        float sum = 0;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          const Gradient<T> d = gradient(k);
          sum = fmaf(d.g.low, d.n.low, fmaf(d.g.high, d.n.high, sum));
        }
        const float mean = lanes_sum(sum, plan.lanes) / static_cast<float>(dim);
        if (!wanted(i)) continue;
        Group<T, kWidth> out;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          const Gradient<T> d = gradient(k);
          dweight[k].low = fmaf(d.dn.low, d.n.low, dweight[k].low);
          dweight[k].high = fmaf(d.dn.high, d.n.high, dweight[k].high);
          const Pair din = din_of(d, mean, rstd[i]);
          out.low.at[k] = from_float<T>(din.low);
          out.high.at[k] = from_float<T>(din.high);
        }
        store_group(static_cast<T*>(args.din) + work.token * args.din_stride + head_of(i) * dim,
                    place, out);
        order = max(order, order_of(out));
      }
    }
  };
  const auto end_part = [&](const Part& part) {
    if (args.dweight == nullptr) return;
    const PartSums to = part.of(args.partial_sums, dim, smem_tail<ThreadSums<kWidth>, float>());
    __syncthreads();  // those of the part before have been read
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      sums[threadIdx.x][k] = dweight[k].low;
      sums[threadIdx.x][kWidth + k] = dweight[k].high;
      dweight[k] = {};
    }
    __syncthreads();
    for (int d = static_cast<int>(threadIdx.x); d < dim; d += kThreads) {
      const PairOf pair = pair_of_element(args, d);
      const int k = pair.index % kWidth + (pair.high ? kWidth : 0);
      float sum = 0;
      for (int thread = pair.index / kWidth; thread < kThreads; thread += plan.lanes)
        sum += sums[thread][k];
      to.put(d, Vector<float, 1>{sum});
    }
  };
  const auto groups = static_cast<int>((args.tokens + plan.tokens - 1) / plan.tokens);
  for_parts(
      pieces, (groups + pieces - 1) / pieces, [](int, int) {}, visit, end_part);
  if (args.amax != nullptr)
    join_maximum<kThreads>(args.amax, order, smem<ThreadSums<kWidth>>().maximum.partials);
}

/// One warp: every pieces-th head, of any size and alignment; a piece is one part, whose sums stand
/// where they end up.
template <class T, class In>
__global__ void __launch_bounds__(kThreads)
    any_backward_kernel(RopeBackwardArgs args, std::int64_t pieces) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t piece = std::int64_t{blockIdx.x} * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (piece >= pieces) return;
  const std::int64_t dim = args.head_dim, half = dim / 2;
  const auto* weight = static_cast<const T*>(args.weight);
  float* sums = args.dweight == nullptr ? nullptr : args.partial_sums + piece * kParts * dim;
  for (std::int64_t j = lane; j < half && sums != nullptr; j += 32) {
    const Place at = place_of(args, j);
    sums[at.low] = sums[at.low + at.apart] = 0;
  }
  unsigned order = 0;
  for (std::int64_t row = piece; row < args.tokens * args.heads; row += pieces) {
    const std::int64_t token = row / args.heads, head = row % args.heads;
    const In* dout = static_cast<const In*>(args.dout) + token * args.dout_stride + head * dim;
    const T* in = static_cast<const T*>(args.in) + token * args.in_stride + head * dim;
    T* din = static_cast<T*>(args.din) + token * args.din_stride + head * dim;
    const float* angles = args.cos_sin + args.positions[token] * args.rotated;
    const float rstd = args.rstd[row];
    const auto rounded = [&](int d) { return to_float(from_float<T>(to_float(dout[d]))); };
    const auto gradient = [&](const Place& at) {
      const int low = at.low, high = at.low + at.apart;
      return gradient_of<T>(
          {rounded(low), rounded(high)}, {to_float(in[low]), to_float(in[high])},
          shifted({to_float(weight[low]), to_float(weight[high])}, args.weight_offset),
          at.rotates ? angles[low] : 1, at.rotates ? angles[high] : 0, rstd);
    };
    float sum = 0;
    for (std::int64_t j = lane; j < half; j += 32) {
      const Gradient<T> d = gradient(place_of(args, j));
      sum = fmaf(d.g.low, d.n.low, fmaf(d.g.high, d.n.high, sum));
    }
    const float mean = warp_sum(sum) / static_cast<float>(dim);
    for (std::int64_t j = lane; j < half; j += 32) {
      const Place at = place_of(args, j);
      const Gradient<T> d = gradient(at);
      const int low = at.low, high = at.low + at.apart;
      if (sums != nullptr) {
        sums[low] = fmaf(d.dn.low, d.n.low, sums[low]);
        sums[high] = fmaf(d.dn.high, d.n.high, sums[high]);
      }
      const Pair out = din_of(d, mean, rstd);
      din[low] = from_float<T>(out.low);
      din[high] = from_float<T>(out.high);
      order = max(order, order_of(Vector<T, 2>{din[low], din[high]}));
    }
  }
  if (args.amax != nullptr) join_maximum(args.amax, order);
}

// ---- launches ----

template <class... Strides>
bool multiples_of(std::int64_t width, Strides... strides) {
  return ((strides % width == 0) && ...);
}

template <class T, class In, bool kNorm, int kSign>
void launch_forward(const RopeForwardArgs& args, const char* name) {
  LaunchConfig config{.grid = 1, .block = kThreads, .stream = stream_of(args.exec), .name = name};
  const int lanes =
      lanes_for<T>(args, aligned_to_16(args.out, args.in, args.cos_sin, args.weight) &&
                             multiples_of(kWide<T>, args.out_stride, args.in_stride));
  if (lanes > 0) {
    const Plan plan(args.heads, kForwardHeads, lanes);
    config.grid = static_cast<unsigned>(blocks_for(args.tokens, plan.tokens));
    config.smem_bytes = sizeof(BlockMaximum);
    launch(forward_kernel<T, In, kNorm, kSign>, config, args, plan);
  } else {
    config.grid = static_cast<unsigned>(blocks_for(args.tokens * args.heads, kWarps));
    launch(any_forward_kernel<T, In, kNorm, kSign>, config, args);
  }
}

template <bool kNorm>
void run_forward(const RopeForwardArgs& args) {
  for_type(args.dtype, [&](auto type) {
    launch_forward<decltype(type), decltype(type), kNorm, 1>(args, "rope_forward");
  });
}

/// Without a norm.
void turn_back(const RopeBackwardArgs& args) {
  const RopeForwardArgs turned{
      args.exec,    args.din, args.dout, args.din_stride, args.dout_stride, args.positions,
      args.cos_sin, nullptr,  nullptr,   args.tokens,     args.heads,       args.head_dim,
      args.rotated, 0,        0,         args.dtype,      args.dout_dtype,  args.amax};
  for_types(args.dtype, args.dout_dtype, [&](auto type, auto in) {
    launch_forward<decltype(type), decltype(in), false, -1>(turned, "rope_backward");
  });
}

void forward(const RopeForwardArgs& args) {
  if (args.heads == 0 || args.head_dim == 0) return;
  (args.weight == nullptr ? run_forward<false> : run_forward<true>)(args);
}

std::int64_t backward_scratch_floats(const RopeBackwardArgs& args) {
  const bool sums = args.weight != nullptr && args.dweight != nullptr;
  return sums ? gpu_scratch::rope_backward_floats(groups_of(args), args.head_dim) : 0;
}

void backward(const RopeBackwardArgs& args) {
  if (args.heads == 0 || args.head_dim == 0) return;
  if (args.weight == nullptr) return turn_back(args);
  const std::int64_t pieces = pieces_of(args);
  std::int64_t blocks = pieces;
  for_types(args.dtype, args.dout_dtype, [&](auto type, auto in) {
    using T = decltype(type);
    using In = decltype(in);
    LaunchConfig config{
        .grid = 1, .block = kThreads, .stream = stream_of(args.exec), .name = "rope_backward"};
    const int lanes = lanes_for<T>(
        args, aligned_to_16(args.din, args.dout, args.in, args.cos_sin, args.weight) &&
                  multiples_of(kWide<T>, args.din_stride, args.dout_stride, args.in_stride));
    if (lanes > 0) {
      blocks = min(pieces, args.multiprocessors * gpu_scratch::kRopeBlocks);
      config.grid = static_cast<unsigned>(blocks);
      config.smem_bytes =
          sizeof(ThreadSums<kWide<T>>) + static_cast<std::size_t>(args.head_dim) * sizeof(float);
      launch(backward_kernel<T, In>, config, args, Plan(args.heads, kBackwardHeads, lanes),
             static_cast<int>(pieces));
    } else {
      config.grid = static_cast<unsigned>(blocks_for(pieces, kWarps));
      launch(any_backward_kernel<T, In>, config, args, pieces);
    }
  });
  if (args.dweight != nullptr)
    add_pieces(args.exec, args.dweight, {args.partial_sums, pieces, args.head_dim, blocks},
               "rope_backward");
}

}  // namespace

const RopeKernels rope_cuda = {forward, backward, backward_scratch_floats, rope_backward_codes};

}  // namespace trireme::cuda
