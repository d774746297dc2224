// What is wrong is found, and said with its place. Each has a neighbour that is right.
#include <gtest/gtest.h>

#include "ptx_host/program.h"

namespace trireme::ptx {
namespace {

void expect_error(const std::string& body, const std::string& words, std::uint32_t threads = 32,
                  std::uint32_t blocks = 1, std::uint32_t cluster = 1) {
  std::string error;
  try {
    error = TestProgram(body, 8192).error(threads, blocks, cluster);
  } catch (const PtxError& failure) {
    error = failure.what();
  }
  EXPECT_NE(error.find(words), std::string::npos) << "got: " << error;
}
void expect_right(const std::string& body, std::uint32_t threads = 32, std::uint32_t blocks = 1,
                  std::uint32_t cluster = 1) {
  EXPECT_EQ(TestProgram(body, 8192).error(threads, blocks, cluster), "");
}

TEST(PtxFaults, what_is_not_known_is_named) {
  expect_error("frobnicate.b32 %r3, %r2;", "frobnicate.b32: this opcode is not known");
  expect_error("add.wobbly.s32 %r3, %r2, 1;", "add.wobbly.s32");
  expect_error("mov.u32 %r3, %nosuch;", "%nosuch");
  expect_error("bra NOWHERE;", "no label NOWHERE");
  expect_error(
      "mma.sync.aligned.m16n8k16.row.row.f32.bf16.bf16.f32 "
      "{%f1,%f2,%f3,%f4},{%r1,%r2,%r3,%r4},{%r5,%r6},{%f1,%f2,%f3,%f4};",
      "\".col\"");
  expect_error("add.s32 %r3, %r2;", "expected 3 operands");
  expect_error("vote.sync.most.pred %p1, %p2, -1;", "\".most\" is not known");
  expect_error("prefetch.global.L3 [%rd1];", "\".L3\" is not known");
  expect_error("fence.proxy.async.shared::moon;", "\".shared::moon\" is not known");
}

TEST(PtxFaults, addresses) {
  expect_right("st.global.u32 [%rd1+4092], %r1;");
  expect_error("st.global.u32 [%rd1+4096], %r1;", "no device memory");
  expect_error("ld.global.v4.u32 {%r2,%r3,%r4,%r5}, [%rd1+4];", "is not a multiple of 16");
  expect_right("st.shared.u32 [tile+8188], %r1;");
  expect_error("st.shared.u32 [tile+8192], %r1;", "outside the block's");
  expect_error("mov.u64 %rd3, 0;\nld.u32 %r3, [%rd3];", "no device memory");
}

TEST(PtxFaults, barriers_and_collectives) {
  expect_right("bar.sync 0;", 64);
  expect_error("setp.lt.u32 %p1, %r1, 32;\n@%p1 bra END;\nbar.sync 0;\nEND:\nret;",
               "no thread can go on", 64);
  expect_error(
      "setp.lt.u32 %p1, %r1, 16;\n@%p1 bra END;\nbar.sync 0;\nbar.sync 1;\nEND:\nbar.sync 1;",
      "no thread can go on", 32);
  expect_error("bar.sync 1, 48;", "a barrier of 48 threads", 64);
  expect_error(
      "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra A;\nbar.sync 1, 64;\nret;\nA:\nbar.sync 1, 96;\nret;",
      "is met with", 96);
  expect_error("mov.u32 %r2, 1;\nshfl.sync.idx.b32 %r3, %r1, 0, 31, %r2;",
               "not in its own member mask");
  expect_error("setp.lt.u32 %p1, %r1, 16;\n@%p1 exit;\nshfl.sync.idx.b32 %r3, %r1, 0, 31, -1;",
               "lanes that have ended");
}

const std::string kInit =
    "setp.eq.u32 %p1, %r1, 0;\n@%p1 mbarrier.init.shared::cta.b64 [tile], 1;\nbar.sync 0;\n";

TEST(PtxFaults, mbarriers) {
  const std::string arrive = "@%p1 mbarrier.arrive.shared::cta.b64 _, [tile];\n";
  const std::string wait =
      "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [tile], 0;\n@!%p2 bra WAIT;\n";
  expect_right(kInit + arrive + wait);
  expect_error("mbarrier.arrive.shared::cta.b64 _, [tile];", "has not been initialised");
  expect_error(kInit + wait, "no thread can go on");
  expect_error(kInit + "mbarrier.arrive.shared::cta.b64 _, [tile], 2;", "more arrivals");
  expect_error(kInit + "st.shared.u64 [tile], 0;\nbar.sync 0;\n" + arrive,
               "has not been initialised, or was overwritten");
}

// 64 x 16 times 16 x 8, both operands zeros of shared memory at `tile` + 1024.
std::string product(const std::string& between, const std::string& behind) {
  const std::string zero =
      "mov.u32 %r4, 0;\nshl.b32 %r5, %r1, 5;\nmov.u32 %r6, tile;\nadd.u32 %r5, %r5, %r6;\n"
      "st.shared.v4.u32 [%r5+1024], {%r4,%r4,%r4,%r4};\nst.shared.v4.u32 [%r5+1040], "
      "{%r4,%r4,%r4,%r4};\n";
  const std::string descriptor =
      "add.u32 %r6, %r6, 1024;\nshr.u32 %r6, %r6, 4;\ncvt.u64.u32 %rd5, %r6;\nor.b64 %rd5, %rd5, "
      "0x0000001000080000;\n";
  return zero + between + "bar.sync 0;\n" + descriptor +
         "mov.f32 %f1, 0f00000000;\nmov.f32 %f2, %f1;\nmov.f32 %f3, %f1;\nmov.f32 %f4, "
         "%f1;\nsetp.ne.u32 %p3, 0, 1;\nwgmma.fence.sync.aligned;\n"
         "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1,%f2,%f3,%f4}, %rd5, %rd5, %p3, "
         "1, 1, 0, 0;\n"
         "wgmma.commit_group.sync.aligned;\n" +
         behind;
}
const std::string kFence = "fence.proxy.async.shared::cta;\n",
                  kWait = "wgmma.wait_group.sync.aligned 0;\n";

TEST(PtxFaults, wgmma_and_its_proxies) {
  expect_right(product(kFence, kWait + "add.f32 %f5, %f1, %f2;\n"), 128);
  expect_error(product("", kWait), "fence.proxy.async is missing", 128);
  expect_error(product(kFence, "add.f32 %f5, %f1, %f2;\n" + kWait),
               "has not been waited for is used", 128);
  expect_error(product(kFence, ""), "open at the kernel's end", 128);
  // A copy of what is under way is allowed, and has its value after the wait.
  expect_right(product(kFence, "mov.f32 %f9, %f1;\n" + kWait + "add.f32 %f5, %f9, %f2;\n"), 128);
  expect_error(product(kFence, "mov.f32 %f9, %f1;\nadd.f32 %f5, %f9, %f2;\n" + kWait),
               "has not been waited for is used", 128);
}

TEST(PtxFaults, cp_async_comes_at_its_wait) {
  const std::string copy = "cp.async.ca.shared.global [tile], [%rd2], 4;\ncp.async.commit_group;\n";
  const std::string read = "ld.shared.u32 %r3, [tile];\n" + store("%r3");
  EXPECT_EQ(TestProgram(copy + "cp.async.wait_group 0;\n" + read).results(1, {42})[0], 42u);
  EXPECT_EQ(TestProgram(copy + "cp.async.wait_group 1;\n" + read).results(1, {42})[0], 0xffffffffu);
}

TEST(PtxFaults, bulk_copies) {
  const std::string copy =
      "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [tile], 16;\n"
      "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile+1024], [%rd2], "
      "16, [tile];\n";
  const std::string wait =
      "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [tile], 0;\n@!%p2 bra WAIT;\n";
  const std::string read = "ld.shared.u32 %r3, [tile+1024];\n" + store("%r3");
  EXPECT_EQ(TestProgram(kInit + copy + wait + read, 2048).results(32, {7, 0, 0, 0})[0], 7u);
  EXPECT_EQ(TestProgram(kInit + copy + read + wait, 2048).results(32, {7, 0, 0, 0})[0],
            0xffffffffu);
  expect_error(kInit + copy, "a TMA load is open");
  expect_error(kInit + "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [tile+1028], 16;",
               "multiples of 16");
  const std::string write = "st.shared.u32 [tile+1024], %r1;\n";
  const std::string bulk =
      "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [tile+1024], "
      "16;\ncp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n";
  expect_error(kInit + write + bulk, "fence.proxy.async is missing");
  expect_right(kInit + write + kFence + bulk);
  expect_error(kInit + write + kFence + bulk.substr(0, bulk.find("cp.async.bulk.wait")),
               "a TMA store that nobody waited for");
}

TEST(PtxFaults, clusters) {
  expect_right("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;", 32, 2, 2);
  expect_error("mov.u32 %r2, tile;\nmapa.shared::cluster.u32 %r3, %r2, 2;",
               "the cluster has no block 2", 32, 2, 2);
  expect_right(
      "mov.u32 %r2, tile;\nmapa.shared::cluster.u32 %r3, %r2, 1;\nst.shared::cluster.u32 [%r3], "
      "%r1;",
      32, 2, 2);
  expect_error(
      "barrier.cluster.wait.acquire;\nbarrier.cluster.arrive.release;\nbarrier.cluster.wait."
      "acquire;\nmov.u32 %r2, %cluster_ctarank;\n"
      "setp.eq.u32 %p1, %r2, 0;\n@%p1 bra END;\nmbarrier.arrive.shared::cta.b64 _, "
      "[tile];\nEND:\nret;",
      "has not been initialised", 32, 2, 2);
}

}  // namespace
}  // namespace trireme::ptx
