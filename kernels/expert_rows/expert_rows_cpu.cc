#include "kernels/common/activation.h"
#include "kernels/common/parallel.h"
#include "kernels/expert_rows/expert_rows_table.h"

namespace trireme::TRIREME_ISA {
namespace {

// ---- the table of rows: tokens are counted by pieces, and sorted stably by expert ----

constexpr std::int64_t kWorkPerSlot = 4, kWorkPerElement = 8;

std::int64_t tokens_of_sources(const ExpertRowsArgs& args) {
  return args.sources[args.source_count];
}

/// Few enough that adding up their counts is little beside the slots.
int pieces_of(const ExpertRowsArgs& args) {
  const std::int64_t tokens = tokens_of_sources(args);
  return piece_count(args.exec.threads, tokens, args.slots * kWorkPerSlot);
}

std::size_t rows_scratch_bytes(const ExpertRowsArgs& args) {
  return static_cast<std::size_t>(pieces_of(args) * args.experts_here) * sizeof(std::int32_t);
}

/// Counts of a piece become its first rows, expert after expert; gives the number of rows.
std::int64_t begin_pieces(const ExpertRowsArgs& args, std::int32_t* of_pieces, int pieces) {
  std::int32_t rows = 0;
  for (std::int64_t g = 0; g < args.experts_here; ++g) {
    for (int piece = 0; piece < pieces; ++piece) {
      std::int32_t& next = of_pieces[piece * args.experts_here + g];
      const std::int32_t count = next;
      next = rows;
      rows += count;
    }
  }
  return rows;
}

TRIREME_INLINE void begin_source(const ExpertRowsArgs& args, std::int64_t source,
                                 const std::int32_t* next) {
  for (std::int64_t g = 0; g < args.experts_here; ++g)
    args.begins[g * args.source_count + source] = next[g];
}

/// A source that begins where a piece ends is the next piece's; one behind all tokens, the last's.
void sort_piece(const ExpertRowsArgs& args, std::int64_t begin, std::int64_t end,
                std::int32_t* next, std::int64_t rows_max) {
  const std::int64_t tokens = tokens_of_sources(args);
  std::int64_t source = 0;
  while (source < args.source_count && args.sources[source] < begin) ++source;
  for (std::int64_t t = begin; t < end; ++t) {
    for (; source < args.source_count && args.sources[source] == t; ++source)
      begin_source(args, source, next);
    for (std::int64_t slot = t * args.slots; slot < (t + 1) * args.slots; ++slot) {
      const std::int32_t g = args.place[args.chosen[slot]];
      const std::int32_t row = g < 0 ? -1 : next[g]++;
      args.slot_row[slot] = row;
      if (row >= 0 && row < rows_max) args.row_slot[row] = static_cast<std::int32_t>(slot);
    }
  }
  if (end != tokens) return;
  for (; source < args.source_count; ++source) begin_source(args, source, next);
}

void rows(const ExpertRowsArgs& args) {
  const std::int64_t tokens = tokens_of_sources(args), here = args.experts_here;
  const int pieces = pieces_of(args);
  auto* of_pieces = reinterpret_cast<std::int32_t*>(args.scratch);
  parallel_pieces(pieces, tokens, [&](int piece, std::int64_t begin, std::int64_t end) {
    std::int32_t* counts = of_pieces + piece * here;
    __builtin_memset(counts, 0, static_cast<std::size_t>(here) * sizeof(std::int32_t));
    for (std::int64_t slot = begin * args.slots; slot < end * args.slots; ++slot) {
      const std::int32_t g = args.place[args.chosen[slot]];
      if (g >= 0) ++counts[g];
    }
  });
  const std::int64_t count = begin_pieces(args, of_pieces, pieces);
  args.begins[here * args.source_count] = static_cast<std::int32_t>(count);
  parallel_pieces(pieces, tokens, [&](int piece, std::int64_t begin, std::int64_t end) {
    sort_piece(args, begin, end, of_pieces + piece * here, args.rows_max);
  });
  for (std::int64_t slot = tokens * args.slots; slot < args.tokens * args.slots; ++slot)
    args.slot_row[slot] = -1;
}

// ---- rows of tokens ----

template <class T>
void gather_of(const GatherRowsArgs& args) {
  const std::int64_t n = args.channels;
  const std::int64_t rows = args.row_count == nullptr ? args.rows_max : *args.row_count;
  parallel_ranges(args.exec, rows, n, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      __builtin_memcpy(static_cast<void*>(static_cast<T*>(args.rows) + r * n),
                       static_cast<const T*>(args.x) + args.row_slot[r] / args.slots * n,
                       static_cast<std::size_t>(n) * sizeof(T));
    }
  });
}
void gather(const GatherRowsArgs& args) {
  if (args.type == DType::kF32) return gather_of<float>(args);
  gather_of<BFloat16>(args);
}

/// y = the sum of `count` rows from columns c on, four vectors at a time where they are whole: that
/// hides the additions' latency.
template <class T, int kVectors, class Lanes>
TRIREME_INLINE void combine_vectors(T* y, const T* const* rows, std::int64_t count, const T* addend,
                                    std::int64_t c, Lanes lanes) {
  F32 sum[kVectors];
  for (int v = 0; v < kVectors; ++v) sum[v] = F32::load(rows[0] + c + v * F32::kWidth, lanes);
  for (std::int64_t i = 1; i < count; ++i) {
    const T* row = rows[i] + c;
    for (int v = 0; v < kVectors; ++v) sum[v] = sum[v] + F32::load(row + v * F32::kWidth, lanes);
  }
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t at = c + v * F32::kWidth;
    if (addend != nullptr) sum[v] = sum[v] + F32::load(addend + at, lanes);
    sum[v].store(y + at, lanes);
  }
}

template <class T>
void combine_token(const CombineRowsArgs& args, std::int64_t t) {
  const std::int64_t n = args.channels;
  const T* rows[kExpertSlotsMax];
  std::int64_t count = 0;
  for (std::int64_t j = 0; j < args.slots; ++j) {
    const std::int64_t row = args.slot_row[t * args.slots + j];
    if (row >= 0) rows[count++] = static_cast<const T*>(args.rows) + row * n;
  }
  T* y = static_cast<T*>(args.y) + t * n;
  const T* addend = args.addend == nullptr ? nullptr : static_cast<const T*>(args.addend) + t * n;
  if (count == 0) {
    const auto bytes = static_cast<std::size_t>(n) * sizeof(T);
    if (addend == nullptr) {
      __builtin_memset(static_cast<void*>(y), 0, bytes);
    } else if (addend != y) {
      __builtin_memcpy(static_cast<void*>(y), addend, bytes);
    }
    return;
  }
  constexpr int kVectors = 4;
  std::int64_t c = 0;
  for (; c + kVectors * F32::kWidth <= n; c += kVectors * F32::kWidth)
    combine_vectors<T, kVectors>(y, rows, count, addend, c, Full{});
  for_each_vector(c, n, [&](std::int64_t at, auto lanes) {
    combine_vectors<T, 1>(y, rows, count, addend, at, lanes);
  });
}

void combine(const CombineRowsArgs& args) {
  parallel_ranges(args.exec, args.tokens, args.channels * args.slots,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t t = begin; t < end; ++t) {
                      if (args.type == DType::kF32) {
                        combine_token<float>(args, t);
                      } else {
                        combine_token<BFloat16>(args, t);
                      }
                    }
                  });
}

// ---- gated linear units with weights ----

TRIREME_INLINE std::int64_t row_count(const WeightedGluRows& rows) {
  return rows.row_count == nullptr ? rows.rows_max : *rows.row_count;
}
TRIREME_INLINE float weight_of(const WeightedGluRows& rows, std::int64_t r) {
  return rows.weights[rows.row_slot == nullptr ? r : rows.row_slot[r]];
}

/// The expert of rows that ascend.
class ExpertWalk {
 public:
  TRIREME_INLINE explicit ExpertWalk(const RowExperts& experts) : experts_(experts) {}
  TRIREME_INLINE std::int64_t of(std::int64_t r) {
    while (now_ + 1 < experts_.count && experts_.begins[(now_ + 1) * experts_.sources] <= r) ++now_;
    return now_;
  }

 private:
  const RowExperts& experts_;
  std::int64_t now_ = 0;
};

/// One unit of each lane: its result, and from the result's gradient those of gate and up.
template <class Gate>
struct PlainUnit {
  Gate gate;
  F32 up, value;

  TRIREME_INLINE PlainUnit(F32 g, F32 u) : gate(g), up(u), value(gate.value()) {}
  [[nodiscard]] TRIREME_INLINE F32 act() const { return value * up; }
  [[nodiscard]] TRIREME_INLINE F32 dgate(F32 dact) const { return gate.gradient(dact * up); }
  [[nodiscard]] TRIREME_INLINE F32 dup(F32 dact) const { return dact * value; }
};
struct ClampedUnit {
  F32 alpha, gate, up1, s, value;
  Mask gate_ends, up_ends;

  TRIREME_INLINE ClampedUnit(F32 g, F32 u, F32 alpha_, F32 limit) : alpha(alpha_) {
    const F32 one = F32::broadcast(1.0F);
    gate = min(limit, g);
    up1 = max(-limit, min(limit, u)) + one;
    s = sigmoid(alpha * gate);
    value = gate * s;
    gate_ends = limit < g;
    up_ends = (limit < u) | (u < -limit);
  }
  [[nodiscard]] TRIREME_INLINE F32 act() const { return value * up1; }
  [[nodiscard]] TRIREME_INLINE F32 dgate(F32 dact) const {
    const F32 one = F32::broadcast(1.0F);
    return select(gate_ends, F32::zero(), dact * up1 * s * fma(alpha * gate, one - s, one));
  }
  [[nodiscard]] TRIREME_INLINE F32 dup(F32 dact) const {
    return select(up_ends, F32::zero(), dact * value);
  }
};

/// The units of a row.
template <class Gate, class T>
struct PlainRow {
  const T *gate, *up;

  TRIREME_INLINE PlainRow(const WeightedGluRows& rows, std::int64_t r, std::int64_t)
      : gate(static_cast<const T*>(rows.gate_up) + r * 2 * rows.ffn), up(gate + rows.ffn) {}
  template <class Lanes>
  [[nodiscard]] TRIREME_INLINE PlainUnit<Gate> at(std::int64_t f, Lanes lanes) const {
    return {F32::load(gate + f, lanes), F32::load(up + f, lanes)};
  }
};
template <class T>
struct ClampedRow {
  const T *gate, *up, *gate_bias, *up_bias;
  F32 alpha, limit;

  TRIREME_INLINE ClampedRow(const WeightedGluRows& rows, std::int64_t r, std::int64_t expert)
      : gate(static_cast<const T*>(rows.gate_up) + r * 2 * rows.ffn),
        up(gate + rows.ffn),
        gate_bias(static_cast<const T*>(rows.bias) + expert * 2 * rows.ffn),
        up_bias(gate_bias + rows.ffn),
        alpha(F32::broadcast(rows.alpha)),
        limit(F32::broadcast(rows.limit)) {}
  template <class Lanes>
  [[nodiscard]] TRIREME_INLINE ClampedUnit at(std::int64_t f, Lanes lanes) const {
    return {F32::load(gate + f, lanes) + F32::load(gate_bias + f, lanes),
            F32::load(up + f, lanes) + F32::load(up_bias + f, lanes), alpha, limit};
  }
};

template <class Row, class T>
TRIREME_INLINE void glu_forward_row(const WeightedGluForwardArgs& args, std::int64_t r,
                                    const Row& row) {
  const std::int64_t ffn = args.rows.ffn;
  T* h = static_cast<T*>(args.h) + r * ffn;
  const F32 weight = F32::broadcast(weight_of(args.rows, r));
  for_each_vector(0, ffn, [&](std::int64_t f, auto lanes) {
    const auto unit = row.at(f, lanes);
    __builtin_prefetch(h + ffn + f, 1);  // the next row's
    (unit.act() * weight).store(h + f, lanes);
  });
}

template <class Row, class T>
TRIREME_INLINE void glu_backward_row(const WeightedGluBackwardArgs& args, std::int64_t r,
                                     const Row& row) {
  const std::int64_t ffn = args.rows.ffn;
  const T* gate = row.gate;
  const T* dh = static_cast<const T*>(args.dh) + r * ffn;
  T *dgate = static_cast<T*>(args.dgate_up) + r * 2 * ffn, *h = static_cast<T*>(args.h) + r * ffn;
  const F32 weight = F32::broadcast(weight_of(args.rows, r));
  args.dweights[r] = sum_over(0, ffn, [&](std::int64_t f, auto lanes) {
    // The next row's: short rows end before a CPU foresees them.
    __builtin_prefetch(gate + 2 * ffn + f);
    __builtin_prefetch(gate + 3 * ffn + f);
    __builtin_prefetch(h + ffn + f, 1);
    const F32 d = F32::load(dh + f, lanes);
    const auto unit = row.at(f, lanes);
    const F32 act = unit.act(), dact = d * weight;
    (act * weight).store(h + f, lanes);
    unit.dgate(dact).store(dgate + f, lanes);
    unit.dup(dact).store(dgate + ffn + f, lanes);
    return d * act;
  });
}

template <class Row, class T>
void glu_forward_of(const WeightedGluForwardArgs& args) {
  parallel_ranges(args.exec, row_count(args.rows), args.rows.ffn * kWorkPerElement,
                  [&](std::int64_t begin, std::int64_t end) {
                    ExpertWalk experts(args.rows.experts);
                    for (std::int64_t r = begin; r < end; ++r)
                      glu_forward_row<Row, T>(args, r, Row(args.rows, r, experts.of(r)));
                  });
}
template <class Row, class T>
void glu_backward_of(const WeightedGluBackwardArgs& args) {
  parallel_ranges(args.exec, row_count(args.rows), 2 * args.rows.ffn * kWorkPerElement,
                  [&](std::int64_t begin, std::int64_t end) {
                    ExpertWalk experts(args.rows.experts);
                    for (std::int64_t r = begin; r < end; ++r)
                      glu_backward_row<Row, T>(args, r, Row(args.rows, r, experts.of(r)));
                  });
}

template <class T>
void glu_forward_typed(const WeightedGluForwardArgs& args) {
  if (args.rows.bias != nullptr) return glu_forward_of<ClampedRow<T>, T>(args);
  if (args.rows.gate == GluGate::kSilu) return glu_forward_of<PlainRow<SiluGate, T>, T>(args);
  glu_forward_of<PlainRow<GeluGate, T>, T>(args);
}
template <class T>
void glu_backward_typed(const WeightedGluBackwardArgs& args) {
  if (args.rows.bias != nullptr) return glu_backward_of<ClampedRow<T>, T>(args);
  if (args.rows.gate == GluGate::kSilu) return glu_backward_of<PlainRow<SiluGate, T>, T>(args);
  glu_backward_of<PlainRow<GeluGate, T>, T>(args);
}

void glu_forward(const WeightedGluForwardArgs& args) {
  if (args.rows.type == DType::kF32) return glu_forward_typed<float>(args);
  glu_forward_typed<BFloat16>(args);
}
void glu_backward(const WeightedGluBackwardArgs& args) {
  if (args.rows.type == DType::kF32) return glu_backward_typed<float>(args);
  glu_backward_typed<BFloat16>(args);
}

// ---- biases behind a product ----

/// body(row, its expert)
template <class Body>
TRIREME_INLINE void for_each_row(const ExpertBiasArgs& args, const Body& body) {
  parallel_ranges(args.exec, *args.row_count, args.channels,
                  [&](std::int64_t begin, std::int64_t end) {
                    ExpertWalk experts(args.experts);
                    for (std::int64_t r = begin; r < end; ++r) body(r, experts.of(r));
                  });
}

template <class T>
void bias_forward_of(const ExpertBiasArgs& args) {
  const std::int64_t n = args.channels;
  for_each_row(args, [&](std::int64_t r, std::int64_t expert) {
    T* y = static_cast<T*>(args.y) + r * n;
    const T* bias = static_cast<const T*>(args.bias) + expert * n;
    const F32 weight = F32::broadcast(args.weights[args.row_slot[r]]);
    for_each_vector(0, n, [&](std::int64_t c, auto lanes) {
      fma(weight, F32::load(bias + c, lanes), F32::load(y + c, lanes)).store(y + c, lanes);
    });
  });
}
void bias_forward(const ExpertBiasArgs& args) {
  if (args.type == DType::kF32) return bias_forward_of<float>(args);
  bias_forward_of<BFloat16>(args);
}

template <class T>
void bias_backward_of(const ExpertBiasArgs& args) {
  const std::int64_t n = args.channels;
  for_each_row(args, [&](std::int64_t r, std::int64_t expert) {
    const T *dy = static_cast<const T*>(args.dy) + r * n,
            *bias = static_cast<const T*>(args.bias) + expert * n;
    args.dweights[r] += sum_over(0, n, [&](std::int64_t c, auto lanes) {
      return F32::load(dy + c, lanes) * F32::load(bias + c, lanes);
    });
  });
}
void bias_backward(const ExpertBiasArgs& args) {
  if (args.type == DType::kF32) return bias_backward_of<float>(args);
  bias_backward_of<BFloat16>(args);
}

template <class T>
void factors_of(const RowFactorsArgs& args) {
  const std::int64_t rows = args.row_count == nullptr ? args.rows_max : *args.row_count;
  T* to = static_cast<T*>(args.factors);
  parallel_ranges(args.exec, rows, kWorkPerSlot, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float factor = args.weights == nullptr ? 1.0F : args.weights[args.row_slot[r]];
      F32::broadcast(factor).store(to + r, Tail(1));
    }
  });
}
void factors(const RowFactorsArgs& args) {
  if (args.type == DType::kF32) return factors_of<float>(args);
  factors_of<BFloat16>(args);
}

}  // namespace

const ExpertRowsKernels expert_rows_cpu = {rows,         rows_scratch_bytes, gather,
                                           combine,      glu_forward,        glu_backward,
                                           bias_forward, bias_backward,      factors};

}  // namespace trireme::TRIREME_ISA
