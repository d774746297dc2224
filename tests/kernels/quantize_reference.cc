#include "kernels/quantize_reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace trireme::reference {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

int largest_code(DType format) { return format == DType::kF8E4M3 ? 0x7e : 0x7b; }

/// Of all positive codes, which ascend.
const std::array<double, 128>& magnitudes(DType format) {
  static const auto all = [] {
    std::array<std::array<double, 128>, 2> values{};
    for (std::uint32_t code = 0; code < 128; ++code) {
      values[0][code] = value_of_code(code, DType::kF8E4M3);
      values[1][code] = value_of_code(code, DType::kF8E5M2);
    }
    return values;
  }();
  return all[format == DType::kF8E4M3 ? 0 : 1];
}

}  // namespace

double value_of_code(std::uint32_t code, DType format) {
  const bool e4m3 = format == DType::kF8E4M3;
  const int fraction_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  const double sign = (code & 0x80U) != 0 ? -1 : 1;
  const auto magnitude = static_cast<int>(code & 0x7fU);
  if (e4m3 ? magnitude == 0x7f : magnitude > 0x7c) return std::nan("");
  if (!e4m3 && magnitude == 0x7c) return sign * std::numeric_limits<double>::infinity();
  const int exponent = magnitude >> fraction_bits, one = 1 << fraction_bits;
  const int fraction = magnitude % one;
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                               : std::ldexp(one + fraction, exponent - bias - fraction_bits));
}

std::uint8_t nearest_code(double value, DType format) {
  if (std::isnan(value)) return 0x7f;
  const int sign = std::signbit(value) ? 0x80 : 0, largest = largest_code(format);
  const double magnitude = std::abs(value);
  const std::array<double, 128>& values = magnitudes(format);
  if (magnitude >= values[at(largest)]) return static_cast<std::uint8_t>(sign | largest);
  const auto above = std::upper_bound(values.begin(), values.begin() + largest, magnitude);
  const int high = static_cast<int>(above - values.begin()), low = high - 1;
  const double down = magnitude - values[at(low)], up = values[at(high)] - magnitude;
  const bool takes_high = up < down || (up == down && low % 2 == 1);
  return static_cast<std::uint8_t>(sign | (takes_high ? high : low));
}

Place place_of(const ScaleDim& dim, std::int64_t i) {
  Place start{0, 0};
  for (int p = 0; p < dim.part_count; ++p) {
    const ScaleDim::Part& part = dim.parts[at(p)];
    if (i < part.size) {
      const std::int64_t global = part.offset + i;
      const std::int64_t block = dim.block == 0 ? 0 : global / dim.block - part.offset / dim.block;
      return {start.block + block, start.padded + global - part.offset / 128 * 128};
    }
    i -= part.size;
    start.block += dim.blocks_of(part);
    start.padded += ScaleDim::padded_size_of(part);
  }
  return start;
}

Quantized quantize(const std::vector<double>& x, const ScaleDim& rows, const ScaleDim& columns,
                   DType format) {
  const std::int64_t width = columns.size(), blocks = columns.blocks();
  Quantized out;
  out.amax.resize(at(rows.blocks() * blocks));
  out.codes.resize(x.size());
  const auto block_of = [&](std::int64_t r, std::int64_t c) {
    return at(place_of(rows, r).block * blocks + place_of(columns, c).block);
  };
  for (std::int64_t r = 0; r < rows.size(); ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      const auto magnitude = static_cast<float>(std::abs(x[at(r * width + c)]));
      float& amax = out.amax[block_of(r, c)];
      if (std::isnan(magnitude) || magnitude > amax) amax = magnitude;
    }
  }
  const float largest = format == DType::kF8E4M3 ? 448 : 57344;
  for (const float amax : out.amax) {
    const bool plain = amax == 0 || !std::isfinite(amax);
    const float s = plain ? 1 : std::min(largest / amax, std::numeric_limits<float>::max());
    out.factors.push_back(s);
    out.scales.push_back(std::isfinite(amax) ? 1 / s : std::nanf(""));
  }
  for (std::int64_t r = 0; r < rows.size(); ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      const float scaled = static_cast<float>(x[at(r * width + c)]) * out.factors[block_of(r, c)];
      out.codes[at(r * width + c)] = nearest_code(scaled, format);
    }
  }
  return out;
}

std::vector<double> arranged(const std::vector<std::uint8_t>& codes, const ScaleDim& rows,
                             const ScaleDim& columns, bool padded, bool transpose) {
  const ScaleDim& along = transpose ? rows : columns;
  const std::int64_t width = padded ? along.padded_size() : along.size();
  std::vector<double> out(at((transpose ? columns : rows).size() * width));
  for (std::int64_t r = 0; r < rows.size(); ++r) {
    for (std::int64_t c = 0; c < columns.size(); ++c) {
      const std::int64_t i = transpose ? r : c;
      const std::int64_t place = padded ? place_of(along, i).padded : i;
      out[at((transpose ? c : r) * width + place)] = codes[at(r * columns.size() + c)];
    }
  }
  return out;
}

std::vector<double> dequantize(const Quantized& of, const ScaleDim& rows, const ScaleDim& columns,
                               DType format) {
  std::vector<double> x;
  for (std::int64_t r = 0; r < rows.size(); ++r) {
    for (std::int64_t c = 0; c < columns.size(); ++c) {
      const float scale =
          of.scales[at(place_of(rows, r).block * columns.blocks() + place_of(columns, c).block)];
      x.push_back(static_cast<float>(value_of_code(of.codes[at(r * columns.size() + c)], format)) *
                  scale);
    }
  }
  return x;
}

}  // namespace trireme::reference
