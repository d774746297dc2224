#include "kernels/common/check_args.h"

#include <string>

namespace trireme {
namespace {

std::string text_of(const ConstTensorView& view) {
  if (!view.given() && view.shape.rank() == 0) return "nothing";
  return fmt::format("{} {}{}", view.shape.text(), name_of(view.dtype),
                     view.given() ? "" : " without memory");
}

bool overlap(const ConstTensorView& a, const ConstTensorView& b) {
  if (!a.given() || !b.given()) return false;
  return a.data < b.data + b.bytes() && b.data < a.data + a.bytes();
}

}  // namespace

void ArgumentChecker::tensor(const char* name, const ConstTensorView& view, DType dtype,
                             const Shape& shape) const {
  const bool fits =
      view.dtype == dtype && view.shape == shape && (view.given() || shape.count() == 0);
  if (fits) return;
  throw InternalError("{}.{}: expected {} {}, found {}", op_, name, shape.text(), name_of(dtype),
                      text_of(view));
}

void ArgumentChecker::elements(const char* name, const ConstTensorView& view, DType dtype,
                               std::int64_t count) const {
  tensor(name, view.count() == count ? view.reshape({count}) : view, dtype, {count});
}

void ArgumentChecker::optional(const char* name, const ConstTensorView& view, DType dtype,
                               const Shape& shape) const {
  if (view.given()) tensor(name, view, dtype, shape);
}

void ArgumentChecker::absent(const char* name, const ConstTensorView& view,
                             const char* when) const {
  if (view.given())
    throw InternalError("{}.{}: expected nothing {}, found {}", op_, name, when, text_of(view));
}

void ArgumentChecker::rank(const char* name, const ConstTensorView& view, int rank) const {
  if (view.shape.rank() == rank) return;
  throw InternalError("{}.{}: expected {} dims, found {}", op_, name, rank, text_of(view));
}

void ArgumentChecker::floating(const char* name, DType dtype) const {
  if (dtype == DType::kF32 || dtype == DType::kBF16) return;
  throw InternalError("{}.{}: expected fp32 or bf16, found {}", op_, name, name_of(dtype));
}

void ArgumentChecker::indices(const char* name, const ConstTensorView& view,
                              std::int64_t count) const {
  if (!view.given()) return;
  const std::int32_t* values = view.as<std::int32_t>();
  for (std::int64_t i = 0; i < view.count(); ++i) {
    if (values[i] >= 0 && values[i] < count) continue;
    throw InternalError("{}.{}[{}]: expected 0 to {}, found {}", op_, name, i, count - 1,
                        values[i]);
  }
}

void ArgumentChecker::heads(const char* name, const ConstHeadsView& view, DType dtype,
                            const HeadsShape& shape) const {
  const bool fits = view.tokens == shape.tokens && view.heads == shape.heads &&
                    view.head_dim == shape.head_dim && view.dtype == dtype &&
                    view.token_stride >= view.heads * view.head_dim &&
                    (view.data != nullptr || view.tokens == 0);
  if (fits) return;
  throw InternalError(
      "{}.{}: expected heads [{}, {}, {}] {}, found {}[{}, {}, {}] {} with a stride of {}", op_,
      name, shape.tokens, shape.heads, shape.head_dim, name_of(dtype),
      view.data == nullptr ? "no memory for " : "", view.tokens, view.heads, view.head_dim,
      name_of(view.dtype), view.token_stride);
}

void ArgumentChecker::disjoint(const char* name_a, const ConstTensorView& a, const char* name_b,
                               const ConstTensorView& b) const {
  if (overlap(a, b)) throw InternalError("{}.{}: shares memory with {}", op_, name_a, name_b);
}

void ArgumentChecker::same_or_disjoint(const char* name_a, const ConstTensorView& a,
                                       const char* name_b, const ConstTensorView& b) const {
  if (a.data == b.data && a.bytes() == b.bytes() && a.dtype == b.dtype) return;
  if (overlap(a, b))
    throw InternalError("{}.{}: shares part of its memory with {}", op_, name_a, name_b);
}

void ArgumentChecker::same_or_other_heads(const char* name, const ConstHeadsView& a,
                                          const ConstHeadsView& b) const {
  that(a.data != b.data || a.token_stride == b.token_stride, name,
       "aliases an operand of another stride");
}

void ArgumentChecker::that(bool condition, const char* name, const char* problem) const {
  if (!condition) throw InternalError("{}.{}: {}", op_, name, problem);
}

}  // namespace trireme
