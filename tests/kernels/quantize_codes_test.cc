// Codes beside those of other programs: tests/golden/fp8_codes.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/hash.h"
#include "kernels/quantize/quantize.h"
#include "kernels/support/op_test.h"
#include "support/golden.h"

namespace trireme {
namespace {

class QuantizeCodes : public OpTest {};
TRIREME_FOR_ALL_ISAS(QuantizeCodes);

struct Format {
  DType type;
  const char* name;
  float largest;
};
constexpr Format kFormats[] = {{DType::kF8E4M3, "e4m3", 448}, {DType::kF8E5M2, "e5m2", 57344}};

/// MurmurHash3's last steps, of 32 bits.
std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ x >> 16) * 0x85ebca6bU;
  x = (x ^ x >> 13) * 0xc2b2ae35U;
  return x ^ x >> 16;
}

/// make_fp8_codes_golden.py: any sign and fraction, exponents where codes are and beyond.
float random_value(std::uint32_t i) {
  const std::uint32_t exponent = 127 - 26 + mixed(i ^ 0x9e3779b9U) % 46;
  return std::bit_cast<float>((mixed(i) & 0x807fffffU) | exponent << 23);
}

/// Of the codes of `count` values by their index, which are taken as they are: the factor is 1.
std::string hash_of_codes(Context& context, const Format& format, std::int64_t count,
                          const std::function<float(std::uint32_t)>& value) {
  constexpr std::int64_t kRows = 1000;
  TestTensor amax(DType::kI32, {1, 1});
  amax.set(0, std::bit_cast<std::int32_t>(format.largest));
  StreamingHash hash;
  for (std::int64_t first = 0; first < count;) {
    const std::int64_t left = count - first, width = std::min(left, std::int64_t{1000}),
                       rows = std::min(left / width, kRows);
    TestTensor x(DType::kF32, {rows, width}), codes(format.type, {rows, width});
    float* values = x.view().as<float>();
    for (std::int64_t i = 0; i < rows * width; ++i)
      values[i] = value(static_cast<std::uint32_t>(first + i));
    Quantize args;
    args.out = {codes, {}, ScaleDim(rows, 0), ScaleDim(width, 0), false};
    args.x = x;
    args.amax = amax;
    quantize(context, args);
    const std::string bytes = codes.bits();
    hash.update(std::as_bytes(std::span(bytes)));
    first += rows * width;
  }
  return hash.hex();
}

TEST_P(QuantizeCodes, are_those_of_torch_and_ml_dtypes) {
  Context context = test_context(GetParam(), 2);
  const Json golden = read_golden_json("fp8_codes/codes.json");
  const auto bf16 = [](std::uint32_t i) { return std::bit_cast<float>(i << 16); };
  for (const Format& format : kFormats) {
    const auto wanted = [&](const Json& of) { return of.find(format.name)->as_string(); };
    EXPECT_EQ(hash_of_codes(context, format, 65536, bf16), wanted(*golden.find("bf16")));
    for (const Json& random : golden.find("random")->as_array()) {
      const std::int64_t count = random.find("count")->as_integer();
      if (context.on_gpu() && count > 1'000'000) continue;  // an executor on the host takes hours
      EXPECT_EQ(hash_of_codes(context, format, count, random_value), wanted(random)) << count;
    }
  }
}

}  // namespace
}  // namespace trireme
