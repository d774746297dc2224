#pragma once
// The language-model head and the loss, over chunks of tokens: the logits of one chunk and
// tensor-parallel rank exist at a time. Three numbers a token are gathered between. An adapter
// beside the head (model/adapter.h) goes by the same chunks, its B cut as the weight.

#include "config/model_config.h"
#include "device/context.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/gemm/gemm.h"
#include "model/adapter.h"
#include "parallel/tensor_axis.h"
#include "tensor/arena.h"

namespace trireme {

struct HeadAdapterShape {
  std::int64_t hidden = 0, ranks = 0;  ///< ranks 0: there is none
  bool magnitudes = false, dropout = false, training = false;
};
struct HeadShape {
  std::int64_t vocabulary = 1, tokens = 1;
  DType compute = DType::kF32;
  AxisRank rank;  ///< on the tensor axis
  DeviceKind device = DeviceKind::kCpu;
  HeadAdapterShape adapter = {};
};

/// The rows of the vocabulary that a rank holds.
VocabularyPart vocabulary_part(std::int64_t vocabulary, AxisRank rank);

/// On a GPU they are stored in the compute dtype: a rounding of 2^-9, as that of every activation,
/// for half of the memory and its traffic. A CPU keeps f32, which costs it little.
DType logits_type(const HeadShape& shape);

/// Tokens whose logits exist at once. Each chunk reads the weight and reads and writes its gradient
/// in f32, so that a product of n tokens has n / 4 operations a byte of it: bf16 logits take 2,048
/// tokens, which an H100's 295 operations a byte leave bound by arithmetic. Else about 4M logits of
/// a rank, whole multiples of 64 up to 2,048 tokens, at least 512, on a CPU in f32 192. The same on
/// every rank.
std::int64_t head_chunk_tokens(const HeadShape& shape);

/// Of one chunk. v, in training, is of the compute type, as dlogits.
struct HeadAdapter {
  AdapterRows rows;
  AdapterScratch scratch;
};
HeadAdapter lay_out_head_adapter(ArenaCursor& arena, const AdaptedProduct& product, bool training);

struct HeadBuffers {
  /// [chunk, V], V with the padding of the weight's rows; of the compute dtype: becomes dlogits
  TensorView logits_TV;
  TensorView dlogits_TV;                  ///< bf16, where logits are f32
  TensorView parts_R3T;                   ///< statistics of each part of the vocabulary
  TensorView maximum_T, sum_T, target_T;  ///< of one chunk and the whole vocabulary
  TensorView loss_T;                      ///< of all tokens
  HeadAdapter adapter;
};
HeadBuffers lay_out_head(ArenaCursor& arena, const HeadShape& shape);

struct HeadTraining {
  TensorView dweight_VC;                     ///< f32; may be left out
  Accumulate accumulate = Accumulate::kYes;  ///< of dweight, for the first chunk
  ConstTensorView scale;       ///< [1] f32, of every token's loss: 1 / targets of the global batch
  float z_loss = 0;            ///< times each token's square of the log-sum-exp, beside its loss
  TensorView square_sum = {};  ///< [1] f64, += those squares; given with z_loss
  AdapterGradients adapter = {};  ///< its rows are those of the buffers
  bool input = true;              ///< n's gradient is made: something below is trained
};

/// logits = n W^T; loss_sum [1] f64 += the token losses, added in token order. With `training`,
/// also the gradients; that of n takes n's place, in the residual rows. n [T, C] of all tokens;
/// weight and dweight [V, C] with the rows of `part` and zeros behind them
/// (kVocabularyRowAlignment).
struct HeadLoss {
  TensorView n_TC;
  ConstTensorView weight_VC, targets_T;
  VocabularyPart part;
  TensorView loss_sum;
  AdapterWeights adapter = {};  ///< its rows are those of the buffers
  AdapterDropout dropout = {};
};
void head_loss(Context& context, const TensorAxis& tensor, const HeadBuffers& buffers,
               const HeadLoss& args, const HeadTraining* training);

/// Of magnitudes, where there are any.
void head_gains(Context& context, const AdapterScratch& scratch, ConstTensorView weight_VC,
                const AdapterWeights& adapter);
/// logits = n W^T with what the adapter adds; v where it is given.
void head_logits(Context& context, const AdapterScratch& scratch, TensorView logits_TV,
                 ConstTensorView n_TC, ConstTensorView weight_VC, const AdapterWeights& adapter);

}  // namespace trireme
