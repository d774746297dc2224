#include "parallel/mesh_shape.h"

#include <numeric>

#include "base/error.h"
#include "base/json.h"

namespace trireme {

std::string_view name_of(Axis axis) {
  static constexpr std::string_view kNames[] = {"pipeline", "data", "context", "tensor", "expert"};
  return kNames[static_cast<int>(axis)];
}

std::int64_t ByAxis::total() const {
  return std::accumulate(values_.begin(), values_.end(), std::int64_t{0});
}

ByAxis& ByAxis::operator+=(const ByAxis& other) {
  for (const Axis axis : kTrafficAxes) (*this)[axis] += other[axis];
  return *this;
}

ByAxis& ByAxis::operator-=(const ByAxis& other) {
  for (const Axis axis : kTrafficAxes) (*this)[axis] -= other[axis];
  return *this;
}

MeshShape::MeshShape(std::array<int, kAxisCount> extents) : extents_(extents) {
  for (const int extent : extents_) expect(extent >= 1, "a mesh axis of extent {}", extent);
}

int MeshShape::size() const {
  int product = 1;
  for (const int extent : extents_) product *= extent;
  return product;
}

MeshCoordinate MeshShape::coordinate_of(int rank) const {
  expect(rank >= 0 && rank < size(), "rank {} of a mesh of {}", rank, size());
  MeshCoordinate coordinate{};
  for (int axis = kAxisCount - 1; axis >= 0; --axis) {
    coordinate[axis] = rank % extents_[axis];
    rank /= extents_[axis];
  }
  return coordinate;
}

int MeshShape::rank_of(const MeshCoordinate& coordinate) const {
  int rank = 0;
  for (int axis = 0; axis < kAxisCount; ++axis) {
    expect(coordinate[axis] >= 0 && coordinate[axis] < extents_[axis],
           "coordinate {} on the {} axis of extent {}", coordinate[axis],
           name_of(static_cast<Axis>(axis)), extents_[axis]);
    rank = rank * extents_[axis] + coordinate[axis];
  }
  return rank;
}

std::vector<int> MeshShape::group(Axis axis, int rank) const {
  MeshCoordinate coordinate = coordinate_of(rank);
  std::vector<int> ranks;
  for (int i = 0; i < extent(axis); ++i) {
    coordinate[static_cast<int>(axis)] = i;
    ranks.push_back(rank_of(coordinate));
  }
  return ranks;
}

int MeshShape::group_color(std::initializer_list<Axis> axes, int rank) const {
  MeshCoordinate coordinate = coordinate_of(rank);
  for (const Axis axis : axes) coordinate[static_cast<int>(axis)] = 0;
  return rank_of(coordinate);
}

std::string MeshShape::text() const {
  std::string text;
  for (const Axis axis : kAxes)
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name_of(axis), extent(axis));
  return text;
}

Json MeshShape::json() const {
  Json json = Json::object();
  for (const Axis axis : kAxes) json[name_of(axis)] = std::int64_t{extent(axis)};
  return json;
}

}  // namespace trireme
