#include "kernels/common/activation.h"
#include "kernels/common/parallel.h"
#include "kernels/glu/glu_table.h"
#include "kernels/quantize/quantize_blocks.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr std::int64_t kWorkPerElement = 8;

/// body(token, first column, end column) over the rows, or parts of a row, that stand in [begin,
/// end) of T * F elements: one long row is shared out just as many short ones are.
template <class Body>
TRIREME_INLINE void for_each_row(std::int64_t begin, std::int64_t end, std::int64_t ffn,
                                 const Body& body) {
  while (begin < end) {
    const std::int64_t token = begin / ffn, first = begin - token * ffn;
    const std::int64_t last = first + (end - begin) < ffn ? first + (end - begin) : ffn;
    body(token, first, last);
    begin += last - first;
  }
}

template <class Gate, class T>
void forward_of(const GluForwardArgs& args) {
  parallel_ranges(args.exec, args.tokens * args.ffn, kWorkPerElement,
                  [&](std::int64_t begin, std::int64_t end) {
                    for_each_row(
                        begin, end, args.ffn,
                        [&](std::int64_t t, std::int64_t first, std::int64_t last) {
                          const T* gate = static_cast<const T*>(args.gate_up) + t * 2 * args.ffn;
                          const T* up = gate + args.ffn;
                          T* act = static_cast<T*>(args.act) + t * args.ffn;
                          for_each_vector(first, last, [&](std::int64_t f, auto lanes) {
                            const F32 g = F32::load(gate + f, lanes), u = F32::load(up + f, lanes);
                            __builtin_prefetch(act + args.ffn + f, 1);  // the next row's
                            (Gate(g).value() * u).store(act + f, lanes);
                          });
                        });
                  });
}

template <class Gate, class T>
TRIREME_INLINE void backward_row(const GluBackwardArgs& args, std::int64_t t, std::int64_t first,
                                 std::int64_t last) {
  const T* gate = static_cast<const T*>(args.gate_up) + t * 2 * args.ffn;
  const T* dact = static_cast<const T*>(args.dact) + t * args.ffn;
  T* dgate = static_cast<T*>(args.dgate_up) + t * 2 * args.ffn;
  T* act = args.act == nullptr ? nullptr : static_cast<T*>(args.act) + t * args.ffn;
  for_each_vector(first, last, [&](std::int64_t f, auto lanes) {
    // The next row's: short rows end before a CPU foresees them, 3 % of a product at ffn 352.
    __builtin_prefetch(gate + 2 * args.ffn + f);
    __builtin_prefetch(gate + 3 * args.ffn + f);
    if (act != nullptr) __builtin_prefetch(act + args.ffn + f, 1);
    const F32 g = F32::load(gate + f, lanes), u = F32::load(gate + args.ffn + f, lanes);
    const F32 d = F32::load(dact + f, lanes);
    const Gate activation(g);
    const F32 value = activation.value();
    if (act != nullptr) (value * u).store(act + f, lanes);
    activation.gradient(d * u).store(dgate + f, lanes);
    (d * value).store(dgate + args.ffn + f, lanes);
  });
}

template <class Gate, class T>
void backward_of(const GluBackwardArgs& args) {
  parallel_ranges(args.exec, args.tokens * args.ffn, 2 * kWorkPerElement,
                  [&](std::int64_t begin, std::int64_t end) {
                    for_each_row(begin, end, args.ffn,
                                 [&](std::int64_t t, std::int64_t first, std::int64_t last) {
                                   backward_row<Gate, T>(args, t, first, last);
                                 });
                  });
}

template <class Gate>
void forward_gated(const GluForwardArgs& args) {
  if (args.type == DType::kF32) return forward_of<Gate, float>(args);
  forward_of<Gate, BFloat16>(args);
}
void forward(const GluForwardArgs& args) {
  if (args.gate == GluGate::kSilu) return forward_gated<SiluGate>(args);
  forward_gated<GeluGate>(args);
}

template <class Gate>
void backward_gated(const GluBackwardArgs& args) {
  if (args.type == DType::kF32) return backward_of<Gate, float>(args);
  backward_of<Gate, BFloat16>(args);
}
void backward(const GluBackwardArgs& args) {
  if (args.gate == GluGate::kSilu) return backward_gated<SiluGate>(args);
  backward_gated<GeluGate>(args);
}

// ---- codes ----

/// Some rows, or a part of one, then their codes.
template <class Gate>
void forward_codes_of(const GluForwardCodesArgs& args) {
  constexpr std::int64_t kColumns = kBlocksAtOnce * RowCodes::kBlock;
  const RowCodes& to = args.act;
  const std::int64_t at_once = larger(1, kColumns / to.width);
  const auto some_rows = [&](std::int64_t first, std::int64_t rows) {
    BFloat16 act[kColumns];
    for (std::int64_t begin = 0; begin < args.ffn; begin += kColumns) {
      const std::int64_t end = smaller(begin + kColumns, args.ffn), count = end - begin;
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto *gate = static_cast<const BFloat16*>(args.gate_up) + (first + r) * 2 * args.ffn,
                   *up = gate + args.ffn;
        BFloat16* row = act + r * count;
        for_each_vector(begin, end, [&](std::int64_t f, auto lanes) {
          const F32 g = F32::load(gate + f, lanes), u = F32::load(up + f, lanes);
          (Gate(g).value() * u).store(row + f - begin, lanes);
        });
      }
      encode_blocks(to, first, begin, MadeRows<BFloat16>{act, count, rows, count});
    }
  };
  parallel_ranges(args.exec, args.tokens, kWorkPerElement * args.ffn,
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t t = first; t < last; t += at_once)
                      some_rows(t, smaller(at_once, last - t));
                  });
}
void forward_codes(const GluForwardCodesArgs& args) {
  if (args.gate == GluGate::kSilu) return forward_codes_of<SiluGate>(args);
  forward_codes_of<GeluGate>(args);
}

/// What backward makes of rows [first, last) and columns [begin, end) of dact, which are quantised
/// while a cache has them.
struct GluPanel {
  alignas(64) PanelMemory<BFloat16> dgate, dup, act;

  template <class Gate>
  void make(const GluBackwardCodesArgs& args, std::int64_t first, std::int64_t last,
            std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = first; t < last; ++t) {
      const auto* gate = static_cast<const BFloat16*>(args.gate_up) + t * 2 * args.ffn;
      const auto* of = static_cast<const BFloat16*>(args.dact) + t * args.ffn;
      const std::int64_t at = (t - first) * kPanelColumns - begin;
      for_each_vector(begin, end, [&](std::int64_t f, auto lanes) {
        const F32 g = F32::load(gate + f, lanes), u = F32::load(gate + args.ffn + f, lanes);
        const F32 d = F32::load(of + f, lanes);
        const Gate activation(g);
        const F32 value = activation.value();
        (value * u).store(act + at + f, lanes);
        activation.gradient(d * u).store(dgate + at + f, lanes);
        (d * value).store(dup + at + f, lanes);
      });
    }
  }
  template <class F8>
  void quantize(const GluBackwardCodesArgs& args, std::int64_t first, std::int64_t last,
                std::int64_t begin, std::int64_t end) const {
    const auto both = [&](const BFloat16* memory, std::int64_t column) {
      const auto x = values_of_panel(memory, first, column + begin, column + end);
      quantize_rows<F8>(args.dgate_up.along, x, first, last);
      quantize_rows<F8>(args.dgate_up.across, x, first, last);
    };
    both(dgate, 0);
    both(dup, args.ffn);
    quantize_rows<F8E4M3>(args.act, values_of_panel(act, first, begin, end), first, last);
  }
};

template <class Gate, class F8>
void backward_codes_of(const GluBackwardCodesArgs& args) {
  const QuantizedDim &rows = args.act.rows, &columns = args.act.columns;
  for (const QuantizeArgs* of : {&args.dgate_up.along, &args.dgate_up.across, &args.act})
    begin_quantize(*of);
  parallel_row_blocks(args.act.exec, rows, columns.size, [&](std::int64_t from, std::int64_t to) {
    GluPanel panel;
    for_each_block(rows, from, to,
                   [&](const Part&, std::int64_t, std::int64_t first, std::int64_t last) {
                     for_each_panel(columns, [&](std::int64_t begin, std::int64_t end) {
                       panel.make<Gate>(args, first, last, begin, end);
                       panel.quantize<F8>(args, first, last, begin, end);
                     });
                   });
  });
}
void backward_codes(const GluBackwardCodesArgs& args) {
  for_format(args.dgate_up.along.format, [&](auto f8) {
    if (args.gate == GluGate::kSilu) return backward_codes_of<SiluGate, decltype(f8)>(args);
    backward_codes_of<GeluGate, decltype(f8)>(args);
  });
}

}  // namespace

const GluKernels glu_cpu = {forward, backward, forward_codes, backward_codes};

}  // namespace trireme::TRIREME_ISA
