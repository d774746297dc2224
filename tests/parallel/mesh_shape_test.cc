#include "parallel/mesh_shape.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/json.h"

namespace trireme {
namespace {

TEST(MeshShape, ranks_and_coordinates_are_inverse_at_16384_ranks) {
  const MeshShape mesh({8, 32, 8, 8});
  ASSERT_EQ(mesh.size(), 16384);
  for (int rank = 0; rank < mesh.size(); ++rank)
    EXPECT_EQ(mesh.rank_of(mesh.coordinate_of(rank)), rank);
}

TEST(MeshShape, tensor_ranks_are_neighbours_and_pipeline_is_outermost) {
  const MeshShape mesh({2, 3, 1, 4});
  EXPECT_EQ(mesh.group(Axis::kTensor, 5), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(mesh.group(Axis::kData, 5), (std::vector<int>{1, 5, 9}));
  EXPECT_EQ(mesh.group(Axis::kPipeline, 5), (std::vector<int>{5, 17}));
  EXPECT_EQ(mesh.text(), "pipeline 2 x data 3 x context 1 x tensor 4");
  EXPECT_EQ(mesh.json().dump(), R"({"pipeline":2,"data":3,"context":1,"tensor":4})");
}

TEST(MeshShape, groups_of_an_axis_partition_the_ranks_and_share_a_color) {
  const MeshShape mesh({2, 3, 2, 2});
  for (const Axis axis : kAxes) {
    std::set<int> colors;
    for (int rank = 0; rank < mesh.size(); ++rank) {
      colors.insert(mesh.group_color({axis}, rank));
      for (const int other : mesh.group(axis, rank)) {
        EXPECT_EQ(mesh.group_color({axis}, other), mesh.group_color({axis}, rank));
      }
    }
    EXPECT_EQ(static_cast<int>(colors.size()), mesh.size() / mesh.extent(axis));
  }
}

TEST(MeshShape, ranks_that_differ_along_two_axes_share_a_color) {
  const MeshShape mesh({2, 3, 2, 2});
  std::set<int> colors;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const int color = mesh.group_color({Axis::kData, Axis::kContext}, rank);
    colors.insert(color);
    const MeshCoordinate a = mesh.coordinate_of(rank), b = mesh.coordinate_of(color);
    EXPECT_EQ(a[0], b[0]);
    EXPECT_EQ(a[3], b[3]);
  }
  EXPECT_EQ(colors.size(), 4U);
}

TEST(ByAxis, adds_and_subtracts_axis_by_axis) {
  ByAxis a, b;
  for (const Axis axis : kAxes) {
    a[axis] = 10 + static_cast<int>(axis);
    b[axis] = 100 * static_cast<int>(axis);
  }
  EXPECT_EQ(a.total(), 10 + 11 + 12 + 13);
  for (const Axis axis : kAxes) EXPECT_EQ((a + b)[axis], a[axis] + b[axis]) << name_of(axis);
  EXPECT_EQ(a + b - a, b);
  EXPECT_EQ(ByAxis().total(), 0);
}

TEST(MeshShape, ranks_outside_are_refused) {
  const MeshShape mesh({1, 2, 1, 1});
  EXPECT_THROW((void)mesh.coordinate_of(2), InternalError);
  EXPECT_THROW((void)mesh.rank_of({0, 2, 0, 0}), InternalError);
  EXPECT_THROW(MeshShape({0, 1, 1, 1}), InternalError);
}

}  // namespace
}  // namespace trireme
