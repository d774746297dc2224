// One instruction at a time, beside values worked out by hand.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "ptx_host/program.h"

namespace trireme::ptx {
namespace {

struct OneInstruction {
  const char* text;  // sets %r3 from %r2 = `input`, or %f3 from %f2
  std::uint32_t input, expected;
};
std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

void expect_all(const std::vector<OneInstruction>& cases) {
  for (const OneInstruction& c : cases) {
    TestProgram program(
        "ld.global.u32 %r2, [%rd2];\nmov.b32 %f2, %r2;\nmov.b32 %r3, %r2;\nmov.b32 %f3, %f2;\n" +
        std::string(c.text) + "\n" + store("%r3"));
    EXPECT_EQ(program.results(1, {c.input})[0], c.expected) << c.text << " of " << c.input;
  }
}
constexpr const char* kToBits = "mov.b32 %r3, %f3;";
std::string of_float(const char* text) { return std::string(text) + kToBits; }

TEST(PtxArithmetic, integers) {
  expect_all({{"add.s32 %r3, %r2, -1;", 0, 0xffffffff},
              {"mul.hi.u32 %r3, %r2, %r2;", 0xffffffff, 0xfffffffe},
              {"mul.hi.s32 %r3, %r2, %r2;", 0xffffffff, 0},
              {"div.s32 %r3, %r2, 2;", 0xfffffffd, 0xffffffff},  // -3 / 2 = -1
              {"rem.s32 %r3, %r2, 2;", 0xfffffffd, 0xffffffff},
              {"div.u32 %r3, %r2, 2;", 0xfffffffd, 0x7ffffffe},
              {"shl.b32 %r3, %r2, 32;", 5, 0},
              {"shr.u32 %r3, %r2, 40;", 5, 0},
              {"shr.s32 %r3, %r2, 40;", 0x80000000, 0xffffffff},
              {"bfind.u32 %r3, %r2;", 0x00010000, 16},
              {"bfind.shiftamt.u32 %r3, %r2;", 0x00010000, 15},
              {"bfind.u32 %r3, %r2;", 0, 0xffffffff},
              {"clz.b32 %r3, %r2;", 0, 32},
              {"brev.b32 %r3, %r2;", 1, 0x80000000},
              {"popc.b32 %r3, %r2;", 0xf0f0, 8},
              {"prmt.b32 %r3, %r2, 0, 0x0123;", 0x11223344, 0x44332211},
              {"prmt.b32 %r3, %r2, 0, 0x8888;", 0x00000080, 0xffffffff},
              {"bfe.s32 %r3, %r2, 4, 4;", 0x80, 0xfffffff8},
              {"bfe.u32 %r3, %r2, 4, 4;", 0x80, 8},
              {"bfi.b32 %r3, 0xf, %r2, 8, 4;", 0, 0xf00},
              {"lop3.b32 %r3, %r2, 0xff, 0xf0, 0x96;", 0xffff, 0xffff ^ 0xff ^ 0xf0},
              {"shf.l.wrap.b32 %r3, %r2, 1, 8;", 0xab000000, 0x1ab},
              {"mad.lo.s32 %r3, %r2, 3, 4;", 5, 19}});
}

TEST(PtxArithmetic, conversions_round_and_clamp) {
  const auto to_integer = [](const char* text) { return std::string(text); };
  const std::string nearest = to_integer("cvt.rni.s32.f32 %r3, %f2;"),
                    cut = to_integer("cvt.rzi.s32.f32 %r3, %f2;"),
                    unsigned_cut = to_integer("cvt.rzi.u32.f32 %r3, %f2;");
  const std::string brain = "cvt.rn.bf16.f32 %h1, %f2; cvt.u32.u16 %r3, %h1;",
                    half = "cvt.rn.f16.f32 %h1, %f2; cvt.u32.u16 %r3, %h1;",
                    e4m3 =
                        "cvt.rn.satfinite.e4m3x2.f32 %h1, 0f00000000, %f2; cvt.u32.u16 %r3, %h1;";
  expect_all({{nearest.c_str(), bits(2.5F), 2},
              {nearest.c_str(), bits(3.5F), 4},
              {cut.c_str(), bits(-2.9F), 0xfffffffe},
              {cut.c_str(), bits(1e20F), 0x7fffffff},
              {cut.c_str(), 0x7fc00000, 0},
              {unsigned_cut.c_str(), bits(-1.0F), 0},
              {brain.c_str(), 0x3f808000, 0x3f80},  // a tie goes to the even
              {brain.c_str(), 0x3f818000, 0x3f82},
              {brain.c_str(), 0x7f7fffff, 0x7f80},
              {half.c_str(), bits(65520.0F), 0x7c00},
              {half.c_str(), bits(5.9604645e-8F), 1},
              {e4m3.c_str(), bits(448.0F), 0x7e},
              {e4m3.c_str(), bits(1e9F), 0x7e},
              {e4m3.c_str(), bits(-0.001953125F), 0x81},
              {e4m3.c_str(), bits(17.0F), 0x58}});  // 16 and 18 are neighbours; 17 is a tie
}

TEST(PtxArithmetic, floats) {
  const std::string down = of_float("add.rm.f32 %f3, %f2, 0f30000000;"),
                    up = of_float("add.rp.f32 %f3, %f2, 0f30000000;"),
                    flush = of_float("mul.ftz.f32 %f3, %f2, 0f3f800000;"),
                    keep = of_float("mul.f32 %f3, %f2, 0f3f800000;"),
                    saturate = of_float("cvt.sat.f32.f32 %f3, %f2;"),
                    least = of_float("min.f32 %f3, %f2, 0f3f800000;"),
                    least_nan = of_float("min.NaN.f32 %f3, %f2, 0f3f800000;"),
                    power = of_float("ex2.approx.ftz.f32 %f3, %f2;");
  expect_all({{down.c_str(), bits(1.0F), bits(1.0F)},
              {up.c_str(), bits(1.0F), bits(std::nextafter(1.0F, 2.0F))},
              {flush.c_str(), 1, 0},
              {keep.c_str(), 1, 1},
              {saturate.c_str(), bits(-3.0F), 0},
              {saturate.c_str(), bits(3.0F), bits(1.0F)},
              {saturate.c_str(), 0x7fc00000, 0},
              {least.c_str(), 0x7fc00000, bits(1.0F)},
              {least_nan.c_str(), 0x7fc00000, 0x7fffffff},
              {power.c_str(), bits(3.0F), bits(8.0F)}});
}

TEST(PtxArithmetic, lanes_exchange) {
  EXPECT_EQ(TestProgram("shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;\n" + store("%r3")).results(32)[4],
            5u);
  // Up by one within segments of 8: lane 8 keeps its own.
  const auto up =
      TestProgram("shfl.sync.up.b32 %r3, %r1, 1, 0x1800, -1;\n" + store("%r3")).results(32);
  EXPECT_EQ(up[8], 8u);
  EXPECT_EQ(up[9], 8u);
  EXPECT_EQ(
      TestProgram("setp.lt.u32 %p1, %r1, 3;\nvote.sync.ballot.b32 %r3, %p1, -1;\n" + store("%r3"))
          .results(32)[31],
      7u);
  EXPECT_EQ(TestProgram("redux.sync.add.u32 %r3, %r1, -1;\n" + store("%r3")).results(32)[0],
            31u * 16);
}

TEST(PtxArithmetic, branches_join_again) {
  // Lanes take 1 to 4 turns of a loop; then all vote.
  const auto out = TestProgram(
                       "and.b32 %r2, %r1, 3;\nmov.u32 %r3, 0;\nLOOP:\nadd.u32 %r3, %r3, "
                       "1;\nsetp.le.u32 %p1, %r3, %r2;\n@%p1 bra LOOP;\n"
                       "vote.sync.ballot.b32 %r4, 1, -1;\nadd.u32 %r3, %r3, %r4;\n" +
                       store("%r3"))
                       .results(32);
  EXPECT_EQ(out[6], 2u);  // 3 - 1
}

}  // namespace
}  // namespace trireme::ptx
