#pragma once
// Where a lane's elements lie in the matrices of mma.sync and of a warp's 16 rows of wgmma (PTX
// ISA 9.7.15.5 and 9.7.16.4). `per` elements share a register.

namespace trireme::ptx {

struct Place {
  int row, column;
};
/// A: 16 rows, K columns.
constexpr Place a_place(int lane, int reg, int element, int per) {
  return {lane / 4 + 8 * (reg % 2), per * (lane % 4) + element + 4 * per * (reg / 2)};
}
/// B of mma.sync: K rows, 8 columns.
constexpr Place b_place(int lane, int reg, int element, int per) {
  return {per * (lane % 4) + element + 4 * per * reg, lane / 4};
}
/// C and D: 16 rows, N columns; value i of the lane.
constexpr Place d_place(int lane, int i) {
  return {lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2};
}

}  // namespace trireme::ptx
