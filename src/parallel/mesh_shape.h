#pragma once
// Which rank is who: pure arithmetic on named axes, no MPI, tested at 16,384 ranks.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

class Json;

/// Outermost first: ranks that differ only in `kTensor` are neighbours.
enum class Axis : std::uint8_t { kPipeline, kData, kContext, kTensor };
inline constexpr int kAxisCount = 4;
inline constexpr std::array<Axis, kAxisCount> kAxes = {Axis::kPipeline, Axis::kData, Axis::kContext,
                                                       Axis::kTensor};
std::string_view name_of(Axis axis);

/// A number for each axis, such as bytes or nanoseconds; zeros at first. Plain bytes on the wire.
class ByAxis {
 public:
  std::int64_t& operator[](Axis axis) { return values_[static_cast<std::size_t>(axis)]; }
  std::int64_t operator[](Axis axis) const { return values_[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] std::int64_t total() const;
  ByAxis& operator+=(const ByAxis& other);
  ByAxis& operator-=(const ByAxis& other);
  friend ByAxis operator+(ByAxis a, const ByAxis& b) { return a += b; }
  friend ByAxis operator-(ByAxis a, const ByAxis& b) { return a -= b; }
  friend bool operator==(const ByAxis&, const ByAxis&) = default;

 private:
  std::array<std::int64_t, kAxisCount> values_ = {};
};

using MeshCoordinate = std::array<int, kAxisCount>;

class MeshShape {
 public:
  /// Extents >= 1, indexed by Axis.
  explicit MeshShape(std::array<int, kAxisCount> extents = {1, 1, 1, 1});

  [[nodiscard]] int extent(Axis axis) const { return extents_[static_cast<int>(axis)]; }
  [[nodiscard]] int size() const;
  [[nodiscard]] MeshCoordinate coordinate_of(int rank) const;
  [[nodiscard]] int rank_of(const MeshCoordinate& coordinate) const;
  /// The ranks that differ from `rank` along `axis` only, itself too, in the axis's order.
  [[nodiscard]] std::vector<int> group(Axis axis, int rank) const;
  /// One number for ranks that differ along `axes` only, others for others: a split's colour.
  [[nodiscard]] int group_color(std::initializer_list<Axis> axes, int rank) const;
  /// "pipeline 2 x data 4 x context 1 x tensor 8"
  [[nodiscard]] std::string text() const;
  /// {"pipeline": 2, "data": 4, "context": 1, "tensor": 8}
  [[nodiscard]] Json json() const;

 private:
  std::array<int, kAxisCount> extents_;
};

}  // namespace trireme
