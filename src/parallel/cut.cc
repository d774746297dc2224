#include "parallel/cut.h"

#include <algorithm>

namespace trireme {

int copies_of_units(std::int64_t units, int extent) {
  return units >= extent ? 1 : narrow<int>(div_exact(extent, units));
}

namespace {

/// The elements of a section that a place holds.
Piece share_of(const CutSection& section, AxisPlace place) {
  const std::int64_t unit = div_exact(section.size, section.units);
  Piece units{};
  if (section.units >= place.extent) {
    units = even_piece(section.units, place.extent, place.index);
  } else {
    units = {place.index / copies_of_units(section.units, place.extent), 1};
  }
  return {units.begin * unit, units.size * unit};
}

}  // namespace

int TensorCut::copies(int extent) const {
  if (!given()) return extent;
  const auto of = [&](const CutSection& section) { return copies_of_units(section.units, extent); };
  for (const CutSection& section : sections) {
    expect(of(section) == of(sections.front()), "sections in unlike numbers of copies");
  }
  return of(sections.front());
}

Shape local_shape(const Shape& global, const TensorCut& cut, AxisPlace place) {
  if (!cut.given()) return global;
  Shape local = global;
  std::int64_t size = 0;
  for (const CutSection& section : cut.sections) size += share_of(section, place).size;
  local.set(cut.dim, size);
  return local;
}

std::vector<CutPart> local_parts(const Shape& global, const TensorCut& cut, AxisPlace place) {
  Shape zero = global;
  for (int dim = 0; dim < zero.rank(); ++dim) zero.set(dim, 0);
  if (!cut.given()) return {{{zero, global}, zero}};
  std::vector<CutPart> parts;
  std::int64_t section_begin = 0, at = 0;
  for (const CutSection& section : cut.sections) {
    const Piece share = share_of(section, place);
    CutPart part{{zero, global}, zero};
    part.box.offset.set(cut.dim, section_begin + share.begin);
    part.box.shape.set(cut.dim, share.size);
    part.at.set(cut.dim, at);
    if (part.box.shape.count() > 0) parts.push_back(part);
    section_begin += section.size;
    at += share.size;
  }
  expect(section_begin == global[cut.dim], "sections of {} on a dim of {}", section_begin,
         global[cut.dim]);
  return parts;
}

std::vector<CutPart> rows_of_parts(const std::vector<CutPart>& parts, Piece rows) {
  std::vector<CutPart> cut;
  for (CutPart part : parts) {
    const std::int64_t begin = std::max(part.at[0], rows.begin),
                       end = std::min(part.at[0] + part.box.shape[0], rows.begin + rows.size);
    if (begin >= end || part.box.shape.count() == 0) continue;
    part.box.offset.set(0, part.box.offset[0] + begin - part.at[0]);
    part.box.shape.set(0, end - begin);
    part.at.set(0, begin - rows.begin);
    cut.push_back(part);
  }
  return cut;
}

}  // namespace trireme
