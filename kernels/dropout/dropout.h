#pragma once
// Dropout (Srivastava et al. 2014) whose choice is a function of the token's number, the column and
// a key: no mask is stored, and any cut of tokens and columns over ranks drops the same numbers.

#include "device/context.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// r(t, c) = 16 bits of Philox-4x32-10(key, counter t, c / 8) (base/random.h): of word (c mod 8) /
/// 2 the lower half where c is even, else the upper one. t = 2^32 sample + position.
struct DropoutChoice {
  double share = 0;  ///< dropped, to the next 2^-16; in [0, 1)
  std::uint64_t key = 0;
  ConstTensorView tokens_T2;      ///< i32: of each row's token, its sample and its position there
  std::int64_t first_column = 0;  ///< of the whole row, the first that is here
};

/// d = round(share 2^16), at most 2^16 - 1:
///   y[t,k] = x[t,k] 2^16 / (2^16 - d) where r(tokens[t], first_column + k) >= d, else x[t,k] 0
///
///   y, x [T, K] f32|bf16, one type; y may be x
/// Arithmetic in f32, one rounding. NaN and infinities stay NaN where they are dropped. Linear in
/// x, so a gradient goes back by the same call.
void dropout(Context& context, TensorView y_TK, ConstTensorView x_TK, const DropoutChoice& choice);

}  // namespace trireme
