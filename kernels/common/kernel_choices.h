#pragma once
// Which kernel serves a product or an attention on a GPU where several can. Their bits differ, so
// that runs with equal bits have equal choices: measured once, written beside the run and into its
// checkpoints.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

#include "base/dtype.h"
#include "base/json.h"
#include "kernels/common/gemm_epilogue.h"

namespace trireme {

enum class ProductKernel : std::uint8_t {
  kOwn,      ///< "own": this program's, for any GPU; of bf16 and f32
  kHopper,   ///< "hopper": this program's, by TMA and wgmma
  kLibrary,  ///< "cublaslt"
  kUnfused,  ///< "unfused": the product without its epilogue, as that is chosen, then the op
  kTriple,   ///< "hopper_3": as kHopper, of fp8 by three warpgroups
  kSplit     ///< "hopper_split": as kHopper, of fp8 by blocks that share sums over k
};
inline constexpr int kProductKernelCount = 6;
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

/// What a choice for a product of fp8 operands depends on (gemm_quantized.h). Where blocks of
/// scales begin in a part decides nothing, so that ranks with other parts of a tensor share a
/// choice.
struct QuantizedProductKey {
  static constexpr int kPartsMax = 4;
  /// Sizes of the parts that have scales apart, 0 beyond the last; along K with their padding.
  using Parts = std::array<std::int64_t, kPartsMax>;
  Parts a_rows{}, b_rows{}, k{};
  /// Rows and columns that share a scale; 0: all of a part.
  using Block = std::array<std::int64_t, 2>;
  Block a_scales{}, b_scales{};
  DType a_format = DType::kF8E4M3, b_format = DType::kF8E4M3, c_type = DType::kBF16;
  bool accumulate = false, bias = false, precise_sums = true;
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  friend auto operator<=>(const QuantizedProductKey&, const QuantizedProductKey&) = default;
};

enum class AttentionKernel : std::uint8_t {
  kOwn,     ///< "own"
  kLibrary  ///< "cudnn"
};
inline constexpr int kAttentionKernelCount = 2;

/// One pass over whole sequences, however many: a choice stays when their number changes.
struct AttentionKey {
  std::int64_t tokens = 0, heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  bool backward = false;
  friend auto operator<=>(const AttentionKey&, const AttentionKey&) = default;
};

struct AttentionChoice {
  AttentionKernel kernel = AttentionKernel::kOwn;
  /// Median time by AttentionKernel; 0 where it was not measured.
  std::array<double, kAttentionKernelCount> microseconds{};
  friend bool operator==(const AttentionChoice&, const AttentionChoice&) = default;
};

class KernelChoices {
 public:
  /// Null where this product or attention has none.
  [[nodiscard]] const ProductChoice* find(const ProductKey& key) const;
  /// Never kOwn.
  [[nodiscard]] const ProductChoice* find(const QuantizedProductKey& key) const;
  [[nodiscard]] const AttentionChoice* find(const AttentionKey& key) const;
  /// The first one of a key stays.
  void add(const ProductKey& key, const ProductChoice& choice) { products_.emplace(key, choice); }
  void add(const QuantizedProductKey& key, const ProductChoice& choice) {
    quantized_products_.emplace(key, choice);
  }
  void add(const AttentionKey& key, const AttentionChoice& choice) {
    attention_.emplace(key, choice);
  }
  void add(const KernelChoices& others);
  [[nodiscard]] std::size_t size() const {
    return products_.size() + quantized_products_.size() + attention_.size();
  }
  [[nodiscard]] const std::map<ProductKey, ProductChoice>& products() const { return products_; }
  [[nodiscard]] const std::map<QuantizedProductKey, ProductChoice>& quantized_products() const {
    return quantized_products_;
  }
  [[nodiscard]] const std::map<AttentionKey, AttentionChoice>& attention() const {
    return attention_;
  }

  /// While set, a product or attention without a choice that several kernels serve is run by each
  /// of them many times and gets one: what it accumulates into is no good afterwards.
  [[nodiscard]] bool measuring() const { return measuring_; }
  void set_measuring(bool measuring) { measuring_ = measuring; }

  /// {"products": [{"m": 16384, "n": 4096, "k": 4096, "transpose_a": false, "transpose_b": true,
  /// "accumulate": false, "bias": false, "type": "bf16", "c_type": "bf16", "epilogue": "none",
  /// "kernel": "cublaslt", "microseconds": {"own": 912.4, "cublaslt": 701.5}}],
  /// "fp8_products": [{"a_rows": [16384], "b_rows": [14336, 14336], "k": [4096], "a_scales": [1,
  /// 128], "b_scales": [128, 128], "a_format": "e4m3", "b_format": "e4m3", "c_type": "bf16",
  /// "accumulate": false, "bias": false, "precise_sums": true, "epilogue": "swiglu",
  /// "kernel": "unfused", "microseconds": {"hopper": 2941.3, "unfused": 2283.0}}],
  /// "attention": [{"tokens": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128,
  /// "backward": false, "kernel": "cudnn", "microseconds": {"own": 410.2, "cudnn": 221.7}}]}
  [[nodiscard]] Json json() const;
  /// Other members are left alone. DataError: SOURCE, place ("products[2].kernel"), fault.
  /// `fp8_products`, `attention` and `microseconds` are optional, and of an attention `value_dim`,
  /// where values have as many dims as keys.
  static KernelChoices parse(const Json& choices, std::string_view source);

 private:
  std::map<ProductKey, ProductChoice> products_;
  std::map<QuantizedProductKey, ProductChoice> quantized_products_;
  std::map<AttentionKey, AttentionChoice> attention_;
  bool measuring_ = false;
};

}  // namespace trireme
