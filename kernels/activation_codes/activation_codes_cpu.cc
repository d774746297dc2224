#include "kernels/activation_codes/activation_codes_table.h"
#include "kernels/common/activation.h"
#include "kernels/common/parallel.h"
#include "kernels/quantize/quantize_blocks.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr std::int64_t kWorkPerElement = 8;

/// An activation of columns of x, whose parts are `ffn` apart: what it gives, and the gradients of
/// the parts.
template <class Gate>
struct Gated {
  static constexpr int kParts = 2;
  Gate gate;
  F32 value, up;
  template <class Lanes>
  TRIREME_INLINE Gated(const BFloat16* x, std::int64_t ffn, Lanes lanes)
      : gate(F32::load(x, lanes)), value(gate.value()), up(F32::load(x + ffn, lanes)) {}
  [[nodiscard]] TRIREME_INLINE F32 act() const { return value * up; }
  TRIREME_INLINE void gradients(F32 d, F32 (&of)[kParts]) const {
    of[0] = gate.gradient(d * up);
    of[1] = d * value;
  }
};
struct Plain {
  static constexpr int kParts = 1;
  F32 x;
  template <class Lanes>
  TRIREME_INLINE Plain(const BFloat16* from, std::int64_t, Lanes lanes)
      : x(F32::load(from, lanes)) {}
  [[nodiscard]] TRIREME_INLINE F32 act() const { return gelu(x); }
  TRIREME_INLINE void gradients(F32 d, F32 (&of)[kParts]) const { of[0] = d * gelu_slope(x); }
};

/// call.template operator()<Activation>() of a kind.
template <class Call>
TRIREME_INLINE void for_kind(ActivationKind kind, const Call& call) {
  if (kind == ActivationKind::kSwiglu) return call.template operator()<Gated<SiluGate>>();
  if (kind == ActivationKind::kGeglu) return call.template operator()<Gated<GeluGate>>();
  call.template operator()<Plain>();
}

/// Some rows, or a part of one, then their codes.
template <class Activation>
void forward_of(const ActivationForwardCodesArgs& args) {
  constexpr std::int64_t kColumns = kBlocksAtOnce * RowCodes::kBlock;
  const RowCodes& to = args.act;
  const std::int64_t at_once = larger(1, kColumns / to.width);
  const auto some_rows = [&](std::int64_t first, std::int64_t rows) {
    BFloat16 act[kColumns];
    for (std::int64_t begin = 0; begin < args.ffn; begin += kColumns) {
      const std::int64_t end = smaller(begin + kColumns, args.ffn), count = end - begin;
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto* x =
            static_cast<const BFloat16*>(args.x) + (first + r) * Activation::kParts * args.ffn;
        BFloat16* row = act + r * count;
        for_each_vector(begin, end, [&](std::int64_t f, auto lanes) {
          Activation(x + f, args.ffn, lanes).act().store(row + f - begin, lanes);
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
void forward(const ActivationForwardCodesArgs& args) {
  for_kind(args.kind, [&]<class Activation>() { forward_of<Activation>(args); });
}

/// What backward makes of rows [first, last) and columns [begin, end) of dact, which are quantised
/// while a cache has them.
template <class Activation>
struct Panel {
  static constexpr int kParts = Activation::kParts;
  alignas(64) PanelMemory<BFloat16> dx[kParts], act;

  void make(const ActivationBackwardCodesArgs& args, std::int64_t first, std::int64_t last,
            std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = first; t < last; ++t) {
      const std::int64_t row = t * kParts * args.ffn;
      const auto* x = static_cast<const BFloat16*>(args.x) + row;
      const auto* dact = static_cast<const BFloat16*>(args.dact) + t * args.ffn;
      auto* rows = static_cast<BFloat16*>(args.rows);
      const std::int64_t at = (t - first) * kPanelColumns - begin;
      for_each_vector(begin, end, [&](std::int64_t f, auto lanes) {
        const Activation activation(x + f, args.ffn, lanes);
        F32 gradients[kParts];
        activation.gradients(F32::load(dact + f, lanes), gradients);
        activation.act().store(act + at + f, lanes);
        for (int part = 0; part < kParts; ++part) {
          gradients[part].store(dx[part] + at + f, lanes);
          if (rows != nullptr) gradients[part].store(rows + row + part * args.ffn + f, lanes);
        }
      });
    }
  }
  template <class F8>
  void quantize(const ActivationBackwardCodesArgs& args, std::int64_t first, std::int64_t last,
                std::int64_t begin, std::int64_t end) const {
    for (int part = 0; part < kParts; ++part) {
      const std::int64_t column = part * args.ffn;
      const auto x = values_of_panel(dx[part], first, column + begin, column + end);
      quantize_rows<F8>(args.dx.along, x, first, last);
      quantize_rows<F8>(args.dx.across, x, first, last);
    }
    quantize_rows<F8E4M3>(args.act, values_of_panel(act, first, begin, end), first, last);
  }
};

template <class Activation, class F8>
void backward_of(const ActivationBackwardCodesArgs& args) {
  const QuantizedDim &rows = args.act.rows, &columns = args.act.columns;
  for (const QuantizeArgs* of : {&args.dx.along, &args.dx.across, &args.act}) begin_quantize(*of);
  parallel_row_blocks(args.act.exec, rows, columns.size, [&](std::int64_t from, std::int64_t to) {
    Panel<Activation> panel;
    for_each_block(rows, from, to,
                   [&](const Part&, std::int64_t, std::int64_t first, std::int64_t last) {
                     for_each_panel(columns, [&](std::int64_t begin, std::int64_t end) {
                       panel.make(args, first, last, begin, end);
                       panel.template quantize<F8>(args, first, last, begin, end);
                     });
                   });
  });
}
void backward(const ActivationBackwardCodesArgs& args) {
  for_kind(args.kind, [&]<class Activation>() {
    for_format(args.dx.along.format, [&](auto f8) { backward_of<Activation, decltype(f8)>(args); });
  });
}

}  // namespace

const ActivationCodesKernels activation_codes_cpu = {forward, backward};

}  // namespace trireme::TRIREME_ISA
