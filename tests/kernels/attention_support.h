#pragma once
// What the tests of attention share: operands, the op run on them, and the comparison with the
// reference.

#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_backend.h"
#include "kernels/attention_reference.h"
#include "kernels/support/op_test.h"

namespace trireme::attention_testing {

using reference::AttentionCase;

struct Sizes {
  std::int64_t sequences, heads, kv_heads, head_dim;
  std::int64_t of_values = 0;  ///< 0: as many dims as keys have
  [[nodiscard]] std::int64_t value_dim() const { return of_values == 0 ? head_dim : of_values; }
};

/// How rows of tokens lie: at any element, or as TMA wants them, in multiples of 16 bytes.
enum class Rows : std::uint8_t { kAnywhere, kOf16Bytes };

/// Operands as tensors of the type under test (q, k, v side by side in wider rows, as a fused
/// projection leaves them) and, rounded alike, as doubles for the reference.
struct Problem {
  AttentionCase c;
  Rows rows;
  TestTensor qkv_q, qkv_kv, d_o, first_key, numbers;
  bool documents = false;

  Problem(DType dtype, const Sizes& sizes, std::vector<PositionRange> q_ranges,
          std::vector<PositionRange> kv_ranges, std::uint64_t seed = 1,
          Rows rows = Rows::kAnywhere);
  /// Documents of `length` tokens: a query sees no key before its own document.
  void set_documents(std::int64_t length);
  /// Dropout of that share; sequences are samples from 70000 on.
  void set_dropout(double share, std::uint64_t key = 0x1234567890abcdef,
                   std::int64_t first_head = 0);

  [[nodiscard]] std::int64_t q_rows() const { return c.sequences * c.q_tokens(); }
  [[nodiscard]] std::int64_t kv_rows() const { return c.sequences * c.kv_tokens(); }
  [[nodiscard]] DType dtype() const { return d_o.dtype(); }
  [[nodiscard]] bool aligned() const { return rows == Rows::kOf16Bytes; }
  [[nodiscard]] ConstHeadsView q() const {
    return heads_of(qkv_q.view(), aligned() ? 8 : 2, c.heads, c.head_dim);
  }
  [[nodiscard]] ConstHeadsView k() const {
    return heads_of(qkv_kv.view(), aligned() ? 8 : 1, c.kv_heads, c.head_dim);
  }
  [[nodiscard]] ConstHeadsView v() const {
    return heads_of(qkv_kv.view(), (aligned() ? 16 : 4) + c.kv_heads * c.head_dim, c.kv_heads,
                    c.value_dim);
  }
  [[nodiscard]] AttentionMask mask() const {
    return {c.sequences, c.q_ranges, c.kv_ranges, documents ? first_key.view() : ConstTensorView(),
            c.window};
  }
  [[nodiscard]] AttentionDropout dropout() const {
    return {c.share, c.key, numbers.view(), c.first_head};
  }
  [[nodiscard]] float scale() const { return static_cast<float>(c.scale); }
};

/// The elements of a heads view without what stands between them.
std::vector<double> packed(const ConstHeadsView& view);

/// Heads at the beginning of each row, of as many dims as q and k have.
HeadsView heads(TestTensor& tensor, const AttentionCase& c, std::int64_t count);
ConstHeadsView heads(const TestTensor& tensor, const AttentionCase& c, std::int64_t count);
/// Likewise as v and o.
HeadsView values(TestTensor& tensor, const AttentionCase& c, std::int64_t count);
ConstHeadsView values(const TestTensor& tensor, const AttentionCase& c, std::int64_t count);

struct Output {
  TestTensor o, lse;
};
/// Who computes: not what a context has by itself, where given.
struct Way {
  const AttentionBackend* backend = nullptr;
  int multiprocessors = 0;  ///< on a GPU: as many as it has
};
/// Into memory that held other numbers.
Output run_forward(Isa isa, int threads, const Problem& problem, const Way& way = {});
std::vector<double> o_values(const Problem& problem, const Output& out);

struct Gradients {
  TestTensor dq, dk, dv;
};
enum class Determinism : std::uint8_t { kEqualBits, kNone };
struct BackwardWay {
  Determinism determinism = Determinism::kEqualBits;
  Way way = {};
  bool written =
      false;  ///< gradients come as bf16, over other numbers (AttentionBackward::written)
};
Gradients run_backward(Isa isa, int threads, const Problem& problem, const std::vector<double>& lse,
                       const std::vector<double>& delta, const BackwardWay& how = {});

/// Whether a GPU is tested: its bf16 kernels round P and dS to bf16, and executed on a host they
/// are slow.
bool on_gpu();

/// Sums of many products: rounding of the order of the largest elements, some 1e-6 of them.
inline constexpr Tolerance kSumTolerance = {2e-6, 4e-6};

/// Whether a GPU is tested that runs the kernels for Hopper, with them.
bool on_hopper();

/// The queries at the positions `part`, run alone, have the bits that they have among all of
/// `problem`: one sequence, one range from position 0, no documents.
void expect_same_bits_among_other_queries(Isa isa, const Problem& problem,
                                          const PositionRange& part);

/// Forward and backward; where a GPU is tested, also the backward pass that need not give equal
/// bits, of which dk and dv still have those of the other.
void expect_equal_to_reference(Isa isa, int threads, const Problem& problem,
                               const std::string& what);
/// The backward pass alone.
void expect_gradients_of_reference(Isa isa, int threads, const Problem& problem,
                                   const std::string& what, const Way& way = {});
/// What the forward pass leaves of o for a product are the bits of passes of their own, and o's are
/// those without: codes where `codes` says so, and the largest magnitude.
enum class Left : std::uint8_t { kMaximum, kCodesAndMaximum };
void expect_left_of_o(Isa isa, const Problem& problem, Left left, const std::string& what,
                      const Way& way = {});
/// The forward pass alone.
void expect_output_of_reference(const Problem& problem, const Output& out, const std::string& what);

}  // namespace trireme::attention_testing
