#pragma once
// One call of a foreign attention: its tensors, [token][head][d] in bf16, and their comparison with
// attention in double.
#include <cutlass/numeric_types.h>

#include <string>
#include <vector>

#include "harness.h"

namespace foreign {

using Element = cutlass::bfloat16_t;

struct Case {
  int heads, queries, keys;
  bool causal;
};

struct Tensors {
  Element *q, *k, *v, *o, *d_out, *dq, *dk, *dv;
  float* lse;
};

inline Tensors make_tensors(const Case& c, int d) {
  const std::size_t nq = std::size_t(c.queries) * c.heads * d,
                    nk = std::size_t(c.keys) * c.heads * d;
  return {random<Element>(nq, 1),
          random<Element>(nk, 2),
          random<Element>(nk, 3),
          device<Element>(nq),
          random<Element>(nq, 4),
          device<Element>(nq),
          device<Element>(nk),
          device<Element>(nk),
          device<float>(std::size_t(c.heads) * c.queries)};
}

/// A line for the output, and, `with_backward`, one for each gradient; false where one is wrong.
inline bool compare(const std::string& kernel, const Case& c, int d, const Tensors& t,
                    bool with_backward) {
  Comparison out, dq, dk, dv;
  for (int h = 0; h < c.heads; ++h) {
    const Head head = {c.queries, c.keys, d, c.heads * d, c.causal, 1 / std::sqrt(double(d))};
    const std::size_t at = std::size_t(h) * d;
    std::vector<double> o, weights;
    attention(head, t.q + at, t.k + at, t.v + at, o, weights);
    const auto add = [&](Comparison& to, const Element* got, const std::vector<double>& expected,
                         int rows) {
      for (int i = 0; i < rows; ++i)
        for (int e = 0; e < d; ++e)
          to.add(double(float(got[std::size_t(i) * head.step + at + e])),
                 expected[std::size_t(i) * d + e]);
    };
    add(out, t.o, o, c.queries);
    if (!with_backward) continue;
    const Gradients g = attention_gradients<Element>(
        head, {t.q + at, t.k + at, t.v + at, t.d_out + at}, o, weights);
    add(dq, t.dq, g.dq, c.queries);
    add(dk, t.dk, g.dk, c.keys);
    add(dv, t.dv, g.dv, c.keys);
  }
  const std::string name = kernel + " D " + std::to_string(d) + (c.causal ? " causal " : " full ") +
                           std::to_string(c.queries) + " x " + std::to_string(c.keys);
  bool good = out.report(name + " forward", 1e-2);
  if (!with_backward) return good;
  good &= dq.report(name + " dQ", 2e-2);
  good &= dk.report(name + " dK", 2e-2);
  return dv.report(name + " dV", 2e-2) && good;
}

}  // namespace foreign
