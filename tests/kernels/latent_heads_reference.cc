#include "kernels/latent_heads_reference.h"

#include <algorithm>

namespace trireme::reference {
namespace {

struct Angle {
  double cosine, sine;
};
Angle angle_of(const LatentCase& c, std::size_t t, std::size_t j) {
  const double* row = &c.cos_sin[static_cast<std::size_t>(c.positions[t]) * c.rope];
  return {row[j], row[c.rope / 2 + j]};
}

std::vector<double> turned(const LatentCase& c, std::size_t t, const double* in) {
  std::vector<double> out(in, in + c.rope);
  if (c.positions.empty()) return out;
  const std::size_t half = c.rope / 2;
  for (std::size_t j = 0; j < half; ++j) {
    const double y = c.interleaved ? in[2 * j] : in[j];
    const double z = c.interleaved ? in[2 * j + 1] : in[j + half];
    const Angle a = angle_of(c, t, j);
    out[j] = y * a.cosine - z * a.sine;
    out[j + half] = z * a.cosine + y * a.sine;
  }
  return out;
}

/// The transposed map.
std::vector<double> turned_back(const LatentCase& c, std::size_t t, const double* dout) {
  std::vector<double> din(dout, dout + c.rope);
  if (c.positions.empty()) return din;
  const std::size_t half = c.rope / 2;
  for (std::size_t j = 0; j < half; ++j) {
    const Angle a = angle_of(c, t, j);
    din[c.interleaved ? 2 * j : j] = dout[j] * a.cosine + dout[j + half] * a.sine;
    din[c.interleaved ? 2 * j + 1 : j + half] = dout[j + half] * a.cosine - dout[j] * a.sine;
  }
  return din;
}

/// visit(token, row): row = token * heads + head.
template <class Visit>
void for_heads(const LatentCase& c, const Visit& visit) {
  for (std::size_t row = 0; row < c.tokens * c.heads; ++row) visit(row / c.heads, row);
}

std::size_t latent_of(const LatentCase& c, const std::vector<double>& w) {
  return w.size() / (c.heads * (c.nope + c.value));
}

}  // namespace

std::vector<double> latent_queries(const LatentCase& c, const std::vector<double>& in) {
  std::vector<double> q(c.tokens * c.heads * c.head_dim);
  for_heads(c, [&](std::size_t t, std::size_t row) {
    const double* from = in.data() + row * (c.nope + c.rope);
    double* to = q.data() + row * c.head_dim;
    std::copy_n(from, c.nope, to);
    std::ranges::copy(turned(c, t, from + c.nope), to + c.nope);
  });
  return q;
}

LatentKeysOutput latent_keys(const LatentCase& c, const std::vector<double>& in,
                             const std::vector<double>& r) {
  LatentKeysOutput out;
  out.k.resize(c.tokens * c.heads * c.head_dim);
  out.v.resize(out.k.size());
  for_heads(c, [&](std::size_t t, std::size_t row) {
    const double* from = in.data() + row * (c.nope + c.value);
    double* key = out.k.data() + row * c.head_dim;
    std::copy_n(from, c.nope, key);
    std::ranges::copy(turned(c, t, r.data() + t * c.rope), key + c.nope);
    std::copy_n(from + c.nope, c.value, out.v.data() + row * c.head_dim);
  });
  return out;
}

std::vector<double> latent_queries_backward(const LatentCase& c, const std::vector<double>& dq) {
  std::vector<double> din(c.tokens * c.heads * (c.nope + c.rope));
  for_heads(c, [&](std::size_t t, std::size_t row) {
    const double* from = dq.data() + row * c.head_dim;
    double* to = din.data() + row * (c.nope + c.rope);
    std::copy_n(from, c.nope, to);
    std::ranges::copy(turned_back(c, t, from + c.nope), to + c.nope);
  });
  return din;
}

LatentKeysGradients latent_keys_backward(const LatentCase& c, const std::vector<double>& dk,
                                         const std::vector<double>& dv) {
  LatentKeysGradients out;
  out.din.resize(c.tokens * c.heads * (c.nope + c.value));
  out.dr.resize(c.tokens * c.rope);
  for_heads(c, [&](std::size_t t, std::size_t row) {
    const double* key = dk.data() + row * c.head_dim;
    double* to = out.din.data() + row * (c.nope + c.value);
    std::copy_n(key, c.nope, to);
    std::copy_n(dv.data() + row * c.head_dim, c.value, to + c.nope);
    const std::vector<double> of_head = turned_back(c, t, key + c.nope);
    for (std::size_t j = 0; j < c.rope; ++j) out.dr[t * c.rope + j] += of_head[j];
  });
  return out;
}

std::vector<double> latent_row(const LatentCase& c, const std::vector<double>& latent,
                               const std::vector<double>& r) {
  std::vector<double> out;
  const std::size_t width = latent.size() / std::max<std::size_t>(c.tokens, 1);
  for (std::size_t t = 0; t < c.tokens; ++t) {
    const double* row = latent.data() + t * width;
    out.insert(out.end(), row, row + width);
    const std::vector<double> rotated = turned(c, t, r.data() + t * c.rope);
    out.insert(out.end(), rotated.begin(), rotated.end());
  }
  return out;
}

std::vector<double> latent_absorbed_queries(const LatentCase& c, const std::vector<double>& in,
                                            const std::vector<double>& w) {
  const std::size_t latent = latent_of(c, w);
  std::vector<double> out(c.tokens * c.heads * (latent + c.rope));
  for_heads(c, [&](std::size_t t, std::size_t row) {
    const double* from = in.data() + row * (c.nope + c.rope);
    double* to = out.data() + row * (latent + c.rope);
    const double* of_head = w.data() + row % c.heads * (c.nope + c.value) * latent;
    for (std::size_t n = 0; n < c.nope; ++n) {
      for (std::size_t l = 0; l < latent; ++l) to[l] += from[n] * of_head[n * latent + l];
    }
    std::ranges::copy(turned(c, t, from + c.nope), to + latent);
  });
  return out;
}

std::vector<double> latent_absorbed_values(const LatentCase& c, const std::vector<double>& u,
                                           const std::vector<double>& w) {
  const std::size_t latent = latent_of(c, w);
  std::vector<double> o(c.tokens * c.heads * c.value);
  for_heads(c, [&](std::size_t, std::size_t row) {
    const double* of_head = w.data() + (row % c.heads * (c.nope + c.value) + c.nope) * latent;
    for (std::size_t d = 0; d < c.value; ++d) {
      for (std::size_t l = 0; l < latent; ++l)
        o[row * c.value + d] += u[row * latent + l] * of_head[d * latent + l];
    }
  });
  return o;
}

}  // namespace trireme::reference
