#include "kernels/gemm_quantized_support.h"

#include <cmath>

namespace trireme::gemm_quantized_testing {
namespace {

double value_of(DType format, int code) {
  const int fraction_bits = format == kE4M3 ? 3 : 2, bias = format == kE4M3 ? 7 : 15;
  const int exponent = (code & 0x7f) >> fraction_bits, fraction = code & ((1 << fraction_bits) - 1);
  const double magnitude = std::ldexp(fraction + (exponent == 0 ? 0 : 1 << fraction_bits),
                                      (exponent == 0 ? 1 : exponent) - bias - fraction_bits);
  return code >= 128 ? -magnitude : magnitude;
}

/// For each index of the padded order its block; -1 where it is no index.
std::vector<std::int64_t> padded_blocks(const ScaleDim& dim) {
  std::vector<std::int64_t> blocks;
  std::int64_t before = 0;
  for (int i = 0; i < dim.part_count; ++i) {
    const ScaleDim::Part part = dim.parts[static_cast<std::size_t>(i)];
    const std::int64_t padding = ScaleDim::phase(part, ScaleDim::kAlignment);
    for (std::int64_t at = 0; at < ScaleDim::padded_size_of(part); ++at) {
      const std::int64_t index = at - padding;
      const bool exists = index >= 0 && index < part.size;
      const std::int64_t in_part =
          dim.block == 0 ? 0 : (ScaleDim::phase(part, dim.block) + index) / dim.block;
      blocks.push_back(exists ? before + in_part : -1);
    }
    before += dim.blocks_of(part);
  }
  return blocks;
}
std::uint64_t random_bits(std::uint64_t seed, std::int64_t i) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15 + static_cast<std::uint64_t>(i);
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace

ScaleDim dim_of(std::int64_t block, std::initializer_list<ScaleDim::Part> parts) {
  ScaleDim dim;
  dim.block = block;
  for (const ScaleDim::Part& part : parts) dim.add(part);
  return dim;
}

std::vector<std::int64_t> plain_blocks(const ScaleDim& dim) {
  std::vector<std::int64_t> blocks = padded_blocks(dim);
  std::erase(blocks, -1);
  return blocks;
}

Operand::Operand(DType format, const ScaleDim& rows_, const ScaleDim& columns_, std::uint64_t seed)
    : rows(rows_),
      columns(columns_),
      codes(format, codes_shape(rows, columns, true), 0),
      // Scales of whole tensors stand as cuBLASLt takes them, others anywhere.
      scales(DType::kF32, scales_shape(rows, columns), columns.block == 0 ? 0 : 1) {
  const std::vector<std::int64_t> k = padded_blocks(columns);
  for (std::int64_t i = 0; i < scales.shape().count(); ++i)
    scales.set(i, 0.01 * (1 + static_cast<double>(random_bits(seed + 1, i) % 64)));
  const int largest = format == kE4M3 ? 0x58 : 0x44;  // 16 and 4
  for (std::int64_t i = 0; i < codes.shape().count(); ++i) {
    const std::uint64_t random = random_bits(seed, i);
    const bool exists = k[static_cast<std::size_t>(i) % k.size()] >= 0;
    const auto code =
        static_cast<int>(random % static_cast<unsigned>(largest + 1) + (random >> 32 & 1) * 128);
    codes.set(i, exists ? code : 0);
  }
  decode();
}

void Operand::decode() {
  const std::vector<double> code = codes.values(), scale = scales.values();
  const std::vector<std::int64_t> r = plain_blocks(rows), c = padded_blocks(columns);
  const auto width = static_cast<std::size_t>(columns.blocks());
  values.assign(code.size(), 0);
  for (std::size_t i = 0; i < code.size(); ++i) {
    const std::int64_t column = c[i % c.size()];
    if (column < 0) continue;
    const std::size_t of =
        static_cast<std::size_t>(r[i / c.size()]) * width + static_cast<std::size_t>(column);
    values[i] = value_of(codes.dtype(), static_cast<int>(code[i])) * scale[of];
  }
}

Sums sums_of(const Operand& a, const Operand& b) {
  const auto m = static_cast<std::size_t>(a.rows.size()),
             n = static_cast<std::size_t>(b.rows.size());
  const auto k = static_cast<std::size_t>(a.columns.padded_size());
  Sums result{std::vector<double>(m * n), std::vector<double>(m * n)};
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j)
      for (std::size_t x = 0; x < k; ++x) {
        const double product = a.values[i * k + x] * b.values[j * k + x];
        result.sums[i * n + j] += product;
        result.magnitudes[i * n + j] += std::abs(product);
      }
  return result;
}

void expect_product(const TestTensor& c, const Sums& expected, const std::vector<double>& start,
                    double bits, const std::string& what) {
  const std::vector<double> values = c.values();
  const double rounding = c.dtype() == DType::kBF16 ? 0x1p-8 : 0x1p-23;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = expected.sums[i] + start[i];
    const double bound = std::abs(value) * rounding + expected.magnitudes[i] * std::exp2(-bits);
    ASSERT_NEAR(values[i], value, bound) << what << ", element " << i;
  }
}
double bits_of_sums(std::int64_t k) {
  return test_device::tensor_core_sums() ? 9 : 23 - std::log2(static_cast<double>(k));
}

std::vector<double> repeated(const TestTensor& bias, std::int64_t rows) {
  std::vector<double> all;
  for (std::int64_t i = 0; i < rows; ++i)
    for (const double x : bias.values()) all.push_back(x);
  return all;
}

namespace {

const GemmQuantizedGpuKernels* table_of(const Way& way) {
  const GpuKernels& kernels = gpu_kernels();
  if (way.triple) return kernels.gemm_fp8_triple_sm90;
  if (way.split) return kernels.gemm_fp8_split_sm90;
  return way.library ? kernels.gemm_fp8_cublaslt : kernels.gemm_fp8_sm90;
}

}  // namespace

bool serves(const Context& context, const QuantizedGemm& args, const Way& way) {
  if (!way.library && !way.triple && !way.split) return true;
  const GemmQuantizedGpuKernels* table = table_of(way);
  GemmQuantizedGpuArgs raw = gemm_quantized_internal::gpu_args(context, args);
  if (way.multiprocessors > 0) raw.product.multiprocessors = way.multiprocessors;
  return table != nullptr && table->serves(raw);
}

void multiply(Context& context, const QuantizedGemm& args, const Way& way) {
  gemm_quantized_internal::gemm_by_table(context, args, *table_of(way), way.multiprocessors);
}

}  // namespace trireme::gemm_quantized_testing
