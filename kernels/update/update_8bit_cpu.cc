#include "kernels/common/parallel.h"
#include "kernels/update/update_8bit_table.h"
#include "kernels/update/update_cpu.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr std::int64_t kWorkPerElement = 12;

/// Elements of one block that follow each other, and its number.
struct Piece {
  std::int64_t local, block;  ///< the first, in the rank's tensor
  std::int64_t count;
};

TRIREME_INLINE std::int32_t bits_of(float x) {
  std::int32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
TRIREME_INLINE float float_of(std::int32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

/// What the compiler does not look through: a loop with it loads one value at a time. Loads by
/// several indices at once (gathers) take longer, on many CPUs twice to four times.
TRIREME_INLINE std::int32_t alone(std::int32_t index) {
  asm("" : "+r"(index));
  return index;
}

/// The values of the map; without the magnitude of their block.
TRIREME_INLINE void look_up(float* values, const MomentCodes& map, const std::uint8_t* codes,
                            std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = map.value[alone(codes[i])];
}

/// kSigned: whether the map is; values have no sign where it is not.
template <bool kSigned>
TRIREME_INLINE void encode(std::uint8_t* codes, const MomentCodes& map, const float* x,
                           std::int32_t absmax_bits, std::int64_t count) {
  const float absmax = float_of(absmax_bits);
  const float factor = 1.0F / (absmax < kMomentLeast ? kMomentLeast : absmax);
  const std::int32_t shift = map.shift, first = map.first, last = map.count - 1,
                     negative = map.negative, low = (1 << shift) - 1;
  alignas(64) std::int32_t cell[kMomentBlock], found[kMomentBlock], bits[kMomentBlock];
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t all = bits_of(x[i] * factor), magnitude = all & 0x7fffffff;
    std::int32_t at = (magnitude >> shift) - first;
    at = at < 0 ? 0 : at;
    at = at > last ? last : at;
    if (kSigned) at += all >> 31 & negative;
    cell[i] = at;
    bits[i] = all;
  }
  for (std::int64_t i = 0; i < count; ++i)
    found[i] = static_cast<std::int32_t>(map.cells[alone(cell[i])]);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t step = kSigned ? bits[i] >> 31 | 1 : 1;
    cell[i] = (found[i] & 255) + ((bits[i] & low) > (found[i] >> 8) ? step : 0);
  }
  for (std::int64_t i = 0; i < count; ++i) codes[i] = static_cast<std::uint8_t>(cell[i]);
}

/// most = max(most, bits), which other threads do too.
TRIREME_INLINE void join(std::int32_t* most, std::int32_t bits) {
  std::int32_t seen = __atomic_load_n(most, __ATOMIC_RELAXED);
  while (seen < bits && !__atomic_compare_exchange_n(most, &seen, bits, false, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
  }
}

/// The gradient of a piece: where it lies, or brought together from rows.
TRIREME_INLINE const float* gradient_of(const CodedTensorArgs& tensor, const Piece& piece,
                                        float* together) {
  if (tensor.slots == nullptr) return tensor.gradient + piece.local;
  for (std::int64_t i = 0; i < piece.count;) {
    const std::int64_t at = piece.local + i, r = at / tensor.row, c = at - r * tensor.row;
    const std::int64_t left = tensor.row - c,
                       count = left < piece.count - i ? left : piece.count - i;
    __builtin_memcpy(together + i, tensor.gradient + tensor.slots[r] * tensor.row + c,
                     static_cast<std::size_t>(count) * sizeof(float));
    i += count;
  }
  return together;
}

/// Codes of the new values of a moment, whose bits have the largest magnitude `most` in the piece.
template <CodedPass kPass, bool kSigned>
TRIREME_INLINE void finish(const CodedMomentArgs& moment, const MomentCodes& map,
                           const Piece& piece, const float* x, std::int32_t most) {
  if constexpr (kPass == CodedPass::kMaxima) return join(moment.next + piece.block, most);
  if constexpr (kPass == CodedPass::kGiven) most = moment.next[piece.block];
  if constexpr (kPass == CodedPass::kWhole) moment.absmax[piece.block] = float_of(most);
  encode<kSigned>(moment.codes + piece.local, map, x, most, piece.count);
}

template <UpdateRule kRule, CodedPass kPass>
void update_piece(const CodedTensorArgs& tensor, const MomentTables& maps, const StepConstants& c,
                  const Rates& rates, const Piece& piece) {
  constexpr bool kTwo = kRule == UpdateRule::kAdamW, kChanges = kPass != CodedPass::kMaxima;
  alignas(64) float together[kMomentBlock], ms[kMomentBlock], vs[kMomentBlock];
  const float* gradient = gradient_of(tensor, piece, together);
  look_up(ms, maps.of_signed, tensor.exp_avg.codes + piece.local, piece.count);
  const F32 m_absmax = F32::broadcast(tensor.exp_avg.absmax[piece.block]);
  F32 v_absmax = F32::zero();
  if constexpr (kTwo) {
    look_up(vs, maps.of_unsigned, tensor.exp_avg_sq.codes + piece.local, piece.count);
    v_absmax = F32::broadcast(tensor.exp_avg_sq.absmax[piece.block]);
  }
  F32 most_m = F32::zero(), most_v = F32::zero();
  for_each_vector(0, piece.count, [&](std::int64_t i, auto lanes) {
    float* parameter = tensor.parameter + piece.local + i;
    F32 p = F32::load(parameter, lanes), m = F32::load(ms + i, lanes) * m_absmax,
        v = kTwo ? F32::load(vs + i, lanes) * v_absmax : F32::zero();
    update<kRule>(p, m, v, F32::load(gradient + i, lanes), c, rates);
    m.store(ms + i, lanes);
    most_m = max_bits(most_m, select(lanes, abs(m), F32::zero()));
    if constexpr (kTwo) {
      v.store(vs + i, lanes);
      most_v = max_bits(most_v, select(lanes, abs(v), F32::zero()));
    }
    if constexpr (kChanges) {
      p.store(parameter, lanes);
      if (tensor.copy != nullptr) p.store(tensor.copy + piece.local + i, lanes);
    }
  });
  finish<kPass, true>(tensor.exp_avg, maps.of_signed, piece, ms, reduce_max_bits(most_m));
  if constexpr (kTwo)
    finish<kPass, false>(tensor.exp_avg_sq, maps.of_unsigned, piece, vs, reduce_max_bits(most_v));
}

/// Calls `body` for the pieces of elements [from, to) of a tensor, in the order of its runs.
template <class Body>
TRIREME_INLINE void for_each_piece(const CodedTensorArgs& tensor, std::int64_t from,
                                   std::int64_t to, const Body& body) {
  while (from < to) {
    const std::int64_t run = from / tensor.width, at = from - run * tensor.width;
    const std::int64_t whole = tensor.begin + run * tensor.whole_stride + at;
    std::int64_t count = kMomentBlock - whole % kMomentBlock;
    if (count > tensor.width - at) count = tensor.width - at;
    if (count > to - from) count = to - from;
    body(Piece{tensor.offset + run * tensor.stride + at, whole / kMomentBlock, count});
    from += count;
  }
}

/// The last tensor that begins at `unit` or before.
std::int64_t tensor_of_unit(const CodedUpdateArgs& args, std::int64_t unit) {
  std::int64_t low = 0, high = args.tensor_count;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (args.tensors[middle].first_unit <= unit ? low : high) = middle;
  }
  return low;
}

template <UpdateRule kRule, CodedPass kPass>
void update_units(const CodedUpdateArgs& args) {
  const StepConstants constants = step_constants(*args.step, args.constants);
  parallel_ranges(
      args.exec, args.unit_count, kMomentBlock * kWorkPerElement,
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = tensor_of_unit(args, begin); begin < end; ++t) {
          const CodedTensorArgs& tensor = args.tensors[t];
          const std::int64_t units = (tensor.count + kMomentBlock - 1) / kMomentBlock,
                             last =
                                 tensor.first_unit + units < end ? tensor.first_unit + units : end;
          const std::int64_t from = (begin - tensor.first_unit) * kMomentBlock,
                             to = (last - tensor.first_unit) * kMomentBlock;
          const Rates rates = rates_of(constants, tensor.lr_scale, tensor.decay);
          for_each_piece(tensor, from, to < tensor.count ? to : tensor.count,
                         [&](const Piece& piece) {
                           update_piece<kRule, kPass>(tensor, *args.codes, constants, rates, piece);
                         });
          begin = last;
        }
      });
}

template <UpdateRule kRule>
void update_all(const CodedUpdateArgs& args, CodedPass pass) {
  switch (pass) {
    case CodedPass::kWhole:
      return update_units<kRule, CodedPass::kWhole>(args);
    case CodedPass::kMaxima:
      return update_units<kRule, CodedPass::kMaxima>(args);
    case CodedPass::kGiven:
      return update_units<kRule, CodedPass::kGiven>(args);
  }
}

}  // namespace

const CodedUpdateKernels update_8bit_cpu = {update_all<UpdateRule::kAdamW>,
                                            update_all<UpdateRule::kLion>};

}  // namespace trireme::TRIREME_ISA
