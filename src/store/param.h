#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/shape.h"
#include "parallel/distribution.h"

namespace trireme {

enum class InitKind : std::uint8_t { kZeros, kOnes, kNormal, kUniform };

struct ParamInit {
  InitKind kind = InitKind::kZeros;
  float std = 0;  ///< of kNormal; of kUniform the bound on both sides of 0
};

/// Whether a parameter stands directly behind the one declared before: one GEMM serves both.
enum class Fuse : std::uint8_t { kNo, kWithPrevious };

/// When the gradient of an unsharded parameter is partial on each tensor-parallel rank.
enum class TensorPartial : std::uint8_t {
  kNever,       ///< every rank computes the whole gradient
  kWithTokens,  ///< under sequence parallelism: norms of the residual stream
  kWithHeads,   ///< wherever heads are: norms of q and k, and routers, as tokens are dealt out
};

/// What ZeRO gives a rank of a parameter: some rows; all, or nothing (for updates of whole
/// matrices); or all to each rank (of an optimizer's states those that no cut fits).
enum class Ownership : std::uint8_t { kRows, kWhole, kEveryRank };

/// That products read a parameter in fp8 (e4m3), and how many indices of either dim share a scale;
/// 0: all of a segment of its cut (TensorCut).
struct Fp8Copy {
  std::int64_t block = 0;
  bool begins_matrix = false;  ///< fused with those before, but of another product: an expert's
};

/// Position in the list of ParamMeta.
using ParamIndex = int;
inline constexpr ParamIndex kNoParam = -1;

/// All that is known of a parameter before any memory exists. Declared in model/param_table.cc.
struct ParamMeta {
  std::string name;  ///< Hugging Face's
  Shape shape;       ///< global
  ParamInit init;
  bool decay = false;  ///< weight decay applies: tensors of two or more dims
  int block = 0;       ///< unit of gathering and reduction: the embedding, a layer, the head
  Fuse fuse = Fuse::kNo;
  /// The gradient is one product for each micro-batch; a step's first sets it: nobody clears it.
  bool set_by_product = false;
  TensorCut cut = {};  ///< on the tensor axis
  Ownership ownership = Ownership::kRows;
  std::optional<Fp8Copy> fp8 = {};  ///< else products read it in the compute type
  bool nf4 = false;                 ///< of the base: products read it from codes in NF4
  bool in_f32 = false;              ///< a model that computes in bf16 reads it in fp32 all the same
  bool trainable = true;            ///< else it has no gradient and no state of the optimizer
  /// Of a layer's products (attention, MLP, experts, adapters beside them; not what chooses
  /// experts): what updates of whole matrices take.
  bool matrix = false;
  double lr_scale = 1;                      ///< of the optimizer's rate
  std::optional<double> weight_decay = {};  ///< in place of the optimizer's
  /// What adapters stand beside (AdapterConfig): not trained, read anew at each start, in no
  /// checkpoint, without an fp32 value where products read another type. Until ZeRO stage 3 every
  /// rank has all of it.
  bool base = false;
  bool in_values = true;  ///< in fp32 beside what products read; set by the store
  /// In memory the rows of a rank are followed by rows of zeros up to a multiple of this: for
  /// products, which take them as further rows. They are in no file, sum or count.
  std::int64_t row_alignment = 1;
  TensorPartial partial = TensorPartial::kNever;
  /// Within a block those of the dense view come first.
  MeshView view = MeshView::kDense;
  /// > 0: a row-sparse gradient (RowGradient) of at most this many rows. Of the first parameter.
  std::int64_t looked_up_most = 0;
  /// Not kNoParam: a tied model's head; it has no value, and its gradient is added to this one's.
  ParamIndex shares = kNoParam;
  /// With ZeRO >= 2 and a pipeline: reduce-scattered alone, then added to the embedding's.
  bool reduced_alone = false;
  /// Which of the pipeline ranks that hold this parameter: both ends of a tied model where they are
  /// not one rank. Their gradients are added, owner first, and both update.
  AxisRank tied_rank = {};
};

/// Parameters [first, last], fused where there are several; `first` is kNoParam for "none".
struct ParamRange {
  ParamIndex first = kNoParam, last = kNoParam;
  [[nodiscard]] bool given() const { return first != kNoParam; }
};

}  // namespace trireme
