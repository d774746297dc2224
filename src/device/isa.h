#pragma once
// The instruction sets that CPU ops are compiled for.

#include <cstddef>
#include <cstdint>

/// The one list of them, ascending: a CPU that has one has those above it. Another one is a row
/// here and its compiler flags in kernels/CMakeLists.txt. A row is
///   ROW(enumerator, namespace of its tables, name, what a CPU has beside the row above, ...)
/// AVX2 with F16C, which every such CPU has. AVX512_BF16 rounds to bf16 and multiplies pairs.
#define TRIREME_INSTRUCTION_SETS(ROW, ...)                                                  \
  ROW(kAvx2, avx2, "AVX2", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), \
      __VA_ARGS__)                                                                          \
  ROW(kAvx512, avx512, "AVX-512",                                                           \
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&            \
          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"),         \
      __VA_ARGS__)                                                                          \
  ROW(kAvx512Bf16, avx512_bf16, "AVX512_BF16", __builtin_cpu_supports("avx512bf16"), __VA_ARGS__)

namespace trireme {

#define TRIREME_ENUMERATOR(enumerator, ...) enumerator,
enum class Isa : std::uint8_t { TRIREME_INSTRUCTION_SETS(TRIREME_ENUMERATOR) };
#undef TRIREME_ENUMERATOR

#define TRIREME_ELEMENT(enumerator, ...) Isa::enumerator,
inline constexpr Isa kIsas[] = {TRIREME_INSTRUCTION_SETS(TRIREME_ELEMENT)};
#undef TRIREME_ELEMENT
inline constexpr std::size_t kIsaCount = sizeof(kIsas) / sizeof(Isa);

}  // namespace trireme
