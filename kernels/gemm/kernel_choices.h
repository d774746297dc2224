#pragma once
// Which kernel serves a product on a GPU where several can. Their bits differ, so that runs with
// equal bits have equal choices: measured once, written beside the run and into its checkpoints.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

#include "base/dtype.h"
#include "base/json.h"
#include "kernels/gemm/gemm_epilogue.h"

namespace trireme {

enum class ProductKernel : std::uint8_t {
  kOwn,     ///< "own": this program's, for any GPU
  kHopper,  ///< "hopper": this program's, by TMA and wgmma
  kLibrary  ///< "cublaslt"
};
inline constexpr int kProductKernelCount = 3;
std::string_view name_of(ProductKernel kernel);

/// What a choice depends on; names as in gemm.h. Kernels for other addresses are passed over.
struct ProductKey {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  DType type = DType::kF32, c_type = DType::kF32;
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  friend auto operator<=>(const ProductKey&, const ProductKey&) = default;
};

struct ProductChoice {
  ProductKernel kernel = ProductKernel::kOwn;
  /// Median time by ProductKernel; 0 where it was not measured.
  std::array<double, kProductKernelCount> microseconds{};
  friend bool operator==(const ProductChoice&, const ProductChoice&) = default;
};

class KernelChoices {
 public:
  /// Null where this product has none.
  [[nodiscard]] const ProductChoice* find(const ProductKey& key) const;
  /// The first one of a product stays.
  void add(const ProductKey& key, const ProductChoice& choice) { choices_.emplace(key, choice); }
  void add(const KernelChoices& others);
  [[nodiscard]] std::size_t size() const { return choices_.size(); }
  [[nodiscard]] const std::map<ProductKey, ProductChoice>& all() const { return choices_; }

  /// While set, a product without a choice that several kernels serve is run by each of them many
  /// times and gets one: what it accumulates into is no good afterwards.
  [[nodiscard]] bool measuring() const { return measuring_; }
  void set_measuring(bool measuring) { measuring_ = measuring; }

  /// A list: [{"m": 16384, "n": 4096, "k": 4096, "transpose_a": false, "transpose_b": true,
  /// "accumulate": false, "bias": false, "type": "bf16", "c_type": "bf16", "epilogue": "none",
  /// "kernel": "cublaslt", "microseconds": {"own": 912.4, "cublaslt": 701.5}}]
  [[nodiscard]] Json json() const;
  /// DataError: SOURCE, place ("products[2].kernel"), fault. `microseconds` is optional.
  static KernelChoices parse(const Json& products, std::string_view source);

 private:
  std::map<ProductKey, ProductChoice> choices_;
  bool measuring_ = false;
};

}  // namespace trireme
