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

/// Outermost first: ranks that differ only in `kTensor` are neighbours. kExpert is of the other
/// view of the same ranks (MeshView): it has traffic of its own and no extent here.
enum class Axis : std::uint8_t { kPipeline, kData, kContext, kTensor, kExpert };
inline constexpr int kAxisCount = 4;
inline constexpr std::array<Axis, kAxisCount> kAxes = {Axis::kPipeline, Axis::kData, Axis::kContext,
                                                       Axis::kTensor};
inline constexpr std::array<Axis, kAxisCount + 1> kTrafficAxes = {
    Axis::kPipeline, Axis::kData, Axis::kContext, Axis::kTensor, Axis::kExpert};
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
  std::array<std::int64_t, kTrafficAxes.size()> values_ = {};
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
  /// Of a rank among those of its pipeline stage, and how many these are.
  [[nodiscard]] int stage_rank(int rank) const { return rank % stage_size(); }
  [[nodiscard]] int stage_size() const { return size() / extent(Axis::kPipeline); }
  /// "pipeline 2 x data 4 x context 1 x tensor 8"
  [[nodiscard]] std::string text() const;
  /// {"pipeline": 2, "data": 4, "context": 1, "tensor": 8}
  [[nodiscard]] Json json() const;

 private:
  std::array<int, kAxisCount> extents_;
};

}  // namespace trireme
