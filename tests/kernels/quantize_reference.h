#pragma once
// The formulas of kernels/quantize/quantize.h as scalar loops.

#include <cstdint>
#include <vector>

#include "tensor/quantized_view.h"

namespace trireme::reference {

/// The value of a code, by the format's definition.
double value_of_code(std::uint32_t code, DType format);
/// That of all codes whose value is nearest, ties to even; the largest beyond it, 0x7f for a NaN.
std::uint8_t nearest_code(double value, DType format);

/// Where index i of a dim lies: its block, and its place in the padded order.
struct Place {
  std::int64_t block, padded;
};
Place place_of(const ScaleDim& dim, std::int64_t i);

/// Of a matrix x [rows, columns]: amax, s and 1 / s of each block; codes in x's own order.
struct Quantized {
  std::vector<float> amax, factors, scales;
  std::vector<std::uint8_t> codes;
};
Quantized quantize(const std::vector<double>& x, const ScaleDim& rows, const ScaleDim& columns,
                   DType format);

/// What lies where in a matrix [R, C], or across: out[r, padded(c)], or out[c, padded(r)]; 0 else.
std::vector<double> arranged(const std::vector<std::uint8_t>& codes, const ScaleDim& rows,
                             const ScaleDim& columns, bool padded, bool transpose);
/// [rows, columns] of anything, across.
template <class T>
std::vector<T> transposed(const std::vector<T>& x, std::int64_t rows, std::int64_t columns) {
  std::vector<T> y(x.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c)
      y[static_cast<std::size_t>(c * rows + r)] = x[static_cast<std::size_t>(r * columns + c)];
  }
  return y;
}

/// x[r, c] = code scale, in f32.
std::vector<double> dequantize(const Quantized& of, const ScaleDim& rows, const ScaleDim& columns,
                               DType format);

}  // namespace trireme::reference
