#pragma once
// Tensors that a file has within another: GPT-OSS's files hold a layer's experts in one tensor,
// whose products are stored [in, out] with the columns of gate and up in turns. A parameter's name
// says which part it is:
//   NAME[e]         of NAME [E, ...] the e-th: a vector as it is, a matrix transposed
//   NAME[e].gate    likewise, of the even columns of what is stored; .up: of the odd ones

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/shape.h"

namespace trireme {

struct TensorPart {
  std::string stored;                ///< NAME
  std::int64_t index = 0;            ///< e
  std::int64_t first = 0, step = 1;  ///< columns of what is stored

  /// NAME's, which holds `count` of parts of this shape (a vector or a matrix).
  [[nodiscard]] Shape stored_shape(const Shape& part, std::int64_t count) const;
  /// Copies what a block of NAME [1, columns or rows, ...] has of a box of the part; all of the
  /// block, whose values are row-major, lies at this index.
  void take(const Box& block, const float* values, const Box& box, float* out) const;
  /// The other way: all of a part to its places among the values of NAME[e].
  void put(const Shape& part, const float* values, float* stored_values) const;
};

/// What a parameter's name says; nothing where it is a tensor of its own.
std::optional<TensorPart> part_of(std::string_view name);
/// The name in a file.
std::string stored_name(std::string_view name);

/// Of each tensor that has parts among `names`: how many e, from 0 on. Throws DataError where a
/// part is missing between.
std::map<std::string, std::int64_t> count_parts(const std::set<std::string>& names);

}  // namespace trireme
