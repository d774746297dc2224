#include "checkpoint/tensor_parts.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/math.h"

namespace trireme {

namespace {

constexpr std::int64_t kIndexMax = std::int64_t{1} << 20;

/// Which rows of a part a range of stored columns has: those of its columns.
Slice rows_within(const TensorPart& part, std::int64_t offset, std::int64_t columns) {
  const auto before = [&](std::int64_t column) {
    return std::max<std::int64_t>(0, (column - part.first + part.step - 1) / part.step);
  };
  const std::int64_t begin = before(offset);
  return {begin, before(offset + columns) - begin};
}

Slice common(const Slice& a, std::int64_t begin, std::int64_t size) {
  const std::int64_t first = std::max(a.begin, begin),
                     end = std::min(a.begin + a.size, begin + size);
  return {first, std::max<std::int64_t>(0, end - first)};
}

}  // namespace

Shape TensorPart::stored_shape(const Shape& part, std::int64_t count) const {
  expect(part.rank() == 1 || part.rank() == 2, "{}: a part of {} dims", stored, part.rank());
  if (part.rank() == 1) return {count, part[0] * step};
  return {count, part[1], part[0] * step};
}

void TensorPart::take(const Box& block, const float* values, const Box& box, float* out) const {
  const bool vector = box.shape.rank() == 1;
  const int last = block.shape.rank() - 1;
  const std::int64_t columns = block.shape[last], offset = block.offset[last];
  const Slice rows = common(rows_within(*this, offset, columns), box.offset[0], box.shape[0]);
  const Slice across =
      vector ? Slice{0, 1} : common({block.offset[1], block.shape[1]}, box.offset[1], box.shape[1]);
  const std::int64_t width = vector ? 1 : box.shape[1], left = vector ? 0 : box.offset[1];
  const std::int64_t top = vector ? 0 : block.offset[1];
  for (std::int64_t r = rows.begin; r < rows.begin + rows.size; ++r) {
    const float* from = values + r * step + first - offset - top * columns;
    float* to = out + (r - box.offset[0]) * width - left;
    for (std::int64_t c = across.begin; c < across.begin + across.size; ++c)
      to[c] = from[c * columns];
  }
}

void TensorPart::put(const Shape& part, const float* values, float* stored_values) const {
  const std::int64_t rows = part[0], width = part.rank() == 1 ? 1 : part[1];
  // Some rows at a time: their places in a stored row are neighbours, which stay in cache.
  constexpr std::int64_t kTile = 16;
  for (std::int64_t tile = 0; tile < rows; tile += kTile) {
    for (std::int64_t c = 0; c < width; ++c) {
      float* to = stored_values + c * rows * step + first;
      for (std::int64_t r = tile; r < std::min(tile + kTile, rows); ++r)
        to[r * step] = values[r * width + c];
    }
  }
}

std::optional<TensorPart> part_of(std::string_view name) {
  TensorPart part;
  if (name.ends_with("].gate") || name.ends_with("].up")) {
    part.step = 2;
    part.first = name.ends_with(".up") ? 1 : 0;
    name = name.substr(0, name.rfind('.'));
  }
  const std::size_t open = name.rfind('[');
  if (open == std::string_view::npos || !name.ends_with("]")) return std::nullopt;
  const char *begin = name.data() + open + 1, *end = name.data() + name.size() - 1;
  const auto [after, error] = std::from_chars(begin, end, part.index);
  if (error != std::errc() || after != end || part.index < 0 || part.index > kIndexMax)
    return std::nullopt;
  part.stored = name.substr(0, open);
  return part;
}

std::string stored_name(std::string_view name) {
  const auto part = part_of(name);
  return part ? part->stored : std::string(name);
}

std::map<std::string, std::int64_t> count_parts(const std::set<std::string>& names) {
  struct Found {
    std::set<std::pair<std::int64_t, std::int64_t>> parts;
    std::int64_t step = 1;
  };
  std::map<std::string, Found> found;
  for (const std::string& name : names) {
    const auto part = part_of(name);
    if (!part) continue;
    Found& of = found[part->stored];
    of.parts.emplace(part->index, part->first);
    of.step = std::max(of.step, part->step);
  }
  std::map<std::string, std::int64_t> counts;
  for (const auto& [stored, of] : found) {
    const std::int64_t count = of.parts.rbegin()->first + 1;
    if (count * of.step != std::ssize(of.parts)) {
      throw DataError("{}: of {} parts {} are there", stored, count * of.step, of.parts.size());
    }
    counts[stored] = count;
  }
  return counts;
}

}  // namespace trireme
