#pragma once
// What integer and float opcodes share a name for, and what others need of floats.
#include "kernels/ptx_host/decode.h"

namespace trireme::ptx {

/// Of f16, bf16, both packed, f32, f64: the sum's bits, each element rounded to the nearest.
std::uint64_t add_floats(Type type, std::uint64_t a, std::uint64_t b);

/// The words that are left end with a float's type.
bool starts_float(const Decoder& d);
void decode_float_add(Decoder& d);
void decode_float_sub(Decoder& d);
void decode_float_mul(Decoder& d);
void decode_float_fma(Decoder& d);
void decode_float_min(Decoder& d);
void decode_float_max(Decoder& d);
void decode_float_div(Decoder& d);
void decode_float_abs(Decoder& d);
void decode_float_neg(Decoder& d);

}  // namespace trireme::ptx
