#pragma once
// Checks of an op's operands. A mismatch is a defect of the caller (InternalError) and the message
// names the operand: "norm_forward.weight: expected [64] fp32, found [63] fp32".

#include "tensor/heads_view.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// Heads view sizes as they are expected.
struct HeadsShape {
  std::int64_t tokens, heads, head_dim;
};

class ArgumentChecker {
 public:
  /// `op` must outlive the checker: a literal.
  explicit ArgumentChecker(const char* op) : op_(op) {}

  /// Given (unless it has no elements), of this type and shape.
  void tensor(const char* name, const ConstTensorView& view, DType dtype, const Shape& shape) const;
  /// The same of so many elements in any shape: rows of a rank beside a flat state or message.
  void elements(const char* name, const ConstTensorView& view, DType dtype,
                std::int64_t count) const;
  /// Not given, or as `tensor`.
  void optional(const char* name, const ConstTensorView& view, DType dtype,
                const Shape& shape) const;
  void absent(const char* name, const ConstTensorView& view, const char* when) const;
  void rank(const char* name, const ConstTensorView& view, int rank) const;
  /// fp32 or bf16.
  void floating(const char* name, DType dtype) const;
  /// Each in [0, count): others read outside a table. The loader has refused bad data.
  void indices(const char* name, const ConstTensorView& view, std::int64_t count) const;
  /// Of this type and these sizes, its heads within the stride.
  void heads(const char* name, const ConstHeadsView& view, DType dtype,
             const HeadsShape& shape) const;
  /// No common byte.
  void disjoint(const char* name_a, const ConstTensorView& a, const char* name_b,
                const ConstTensorView& b) const;
  /// No common byte, or exactly the same elements.
  void same_or_disjoint(const char* name_a, const ConstTensorView& a, const char* name_b,
                        const ConstTensorView& b) const;
  /// Heads of a wide row lie between each other's: only an equal start shows that two are the same,
  /// which then have one stride.
  void same_or_other_heads(const char* name, const ConstHeadsView& a,
                           const ConstHeadsView& b) const;
  void that(bool condition, const char* name, const char* problem) const;

 private:
  const char* op_;
};

}  // namespace trireme
