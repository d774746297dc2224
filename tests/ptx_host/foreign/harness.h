#pragma once
// For drivers of kernels that are not ours: data, and what is said of a result. A line for each
// case; 1 is returned where one is wrong.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace foreign {

inline void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

/// Memory that both sides see, set to zero.
template <class T>
T* device(std::size_t count) {
  void* memory = nullptr;
  check(cudaMallocManaged(&memory, count * sizeof(T)));
  check(cudaMemset(memory, 0, count * sizeof(T)));
  return static_cast<T*>(memory);
}

/// Between -1 and 1, the same in every run.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  double next() {
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return double(state_ >> 11) * 0x1p-52 - 1;
  }

 private:
  std::uint64_t state_;
};

template <class T>
T* random(std::size_t count, std::uint64_t seed, double scale = 1) {
  T* data = device<T>(count);
  Numbers numbers(seed);
  for (std::size_t i = 0; i < count; ++i) data[i] = T(float(numbers.next() * scale));
  return data;
}

/// Largest |got - expected|, beside the largest |expected|.
class Comparison {
 public:
  void add(double got, double expected) {
    const double error = std::fabs(got - expected);
    if (!(error <= error_)) error_ = std::isnan(error) ? HUGE_VAL : error;
    size_ = std::max(size_, std::fabs(expected));
  }
  bool report(const std::string& name, double bound) const {
    const double relative = error_ / (size_ > 0 ? size_ : 1);
    const bool good = relative <= bound && size_ > 0;
    std::printf("%-58s error %.2e of the largest, bound %.0e: %s\n", name.c_str(), relative, bound,
                good ? "right" : "WRONG");
    std::fflush(stdout);
    return good;
  }

 private:
  double error_ = 0, size_ = 0;
};

/// Attention of one head in double: rows of q beside those of k and v, [s][d], element (i, c) at
/// data[i * step + c].
struct Head {
  int queries, keys, d, step;
  bool causal;
  double scale;
};
template <class T>
void attention(const Head& head, const T* q, const T* k, const T* v, std::vector<double>& o,
               std::vector<double>& p) {
  o.assign(std::size_t(head.queries) * head.d, 0);
  p.assign(std::size_t(head.queries) * head.keys, 0);
  for (int i = 0; i < head.queries; ++i) {
    const int end = head.causal ? i + 1 + head.keys - head.queries : head.keys;
    double largest = -HUGE_VAL, sum = 0;
    double* row = p.data() + std::size_t(i) * head.keys;
    for (int j = 0; j < end; ++j) {
      for (int c = 0; c < head.d; ++c)
        row[j] += double(float(q[std::size_t(i) * head.step + c])) *
                  double(float(k[std::size_t(j) * head.step + c]));
      row[j] *= head.scale;
      largest = std::max(largest, row[j]);
    }
    for (int j = 0; j < end; ++j) sum += row[j] = std::exp(row[j] - largest);
    for (int j = 0; j < end; ++j) {
      row[j] /= sum;
      for (int c = 0; c < head.d; ++c)
        o[std::size_t(i) * head.d + c] += row[j] * double(float(v[std::size_t(j) * head.step + c]));
    }
  }
}

struct Gradients {
  std::vector<double> dq, dk, dv;
};
template <class T>
struct Operands {
  const T *q, *k, *v, *d_out;
};
template <class T>
Gradients attention_gradients(const Head& head, const Operands<T>& x, const std::vector<double>& o,
                              const std::vector<double>& p) {
  const auto d = std::size_t(head.d);
  Gradients g = {std::vector<double>(head.queries * d), std::vector<double>(head.keys * d),
                 std::vector<double>(head.keys * d)};
  const auto at = [&](const T* data, int i, std::size_t c) {
    return double(float(data[std::size_t(i) * head.step + c]));
  };
  for (int i = 0; i < head.queries; ++i) {
    double delta = 0;
    for (std::size_t c = 0; c < d; ++c) delta += at(x.d_out, i, c) * o[i * d + c];
    for (int j = 0; j < head.keys; ++j) {
      const double weight = p[std::size_t(i) * head.keys + j];
      if (weight == 0) continue;
      double dp = 0;
      for (std::size_t c = 0; c < d; ++c) {
        dp += at(x.d_out, i, c) * at(x.v, j, c);
        g.dv[j * d + c] += weight * at(x.d_out, i, c);
      }
      const double ds = weight * (dp - delta) * head.scale;
      for (std::size_t c = 0; c < d; ++c) {
        g.dq[i * d + c] += ds * at(x.k, j, c);
        g.dk[j * d + c] += ds * at(x.q, i, c);
      }
    }
  }
  return g;
}

}  // namespace foreign
