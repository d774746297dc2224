#include "plan/op_time.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

/// Round numbers: 1 TFLOP/s, 1 GB/s of memory, 2 GB/s in a node of 4, 1 GB/s between nodes.
Cluster round_cluster() {
  Cluster cluster;
  cluster.devices_per_node = 4;
  cluster.device.kind = DeviceKind::kCpu;
  cluster.device.tflops = {1, 2, 4};
  cluster.device.bytes_per_second = 1e9;
  cluster.node = {2e9, 0};
  cluster.network = {1e9, 0};
  cluster.efficiency = {1, 1, 1, 1, 1};
  return cluster;
}

TEST(OpTime, a_product_takes_the_longer_of_arithmetic_and_memory) {
  const Cluster cluster = round_cluster();
  const OpTime time(cluster, 1);
  EXPECT_DOUBLE_EQ(time.product({1000, 1000, 1000, DType::kF32, 0}), 2e9 / 1e12 * 4);  // bytes
  EXPECT_DOUBLE_EQ(time.product({10000, 10000, 10000, DType::kF32, 0}), 2.0);
  EXPECT_DOUBLE_EQ(time.product({10000, 10000, 10000, DType::kBF16, 0}), 1.0);
  EXPECT_DOUBLE_EQ(time.product({10000, 10000, 10000, DType::kF8E5M2, 0, 2}), 1.0);
  EXPECT_DOUBLE_EQ(time.product({10, 10, 10, DType::kF32, 4}), (4 * 200 + 400) / 1e9);
  Cluster slower = cluster;
  slower.efficiency.gemm_fp8 = 0.5;
  EXPECT_DOUBLE_EQ(OpTime(slower, 1).product({10000, 10000, 10000, DType::kF8E4M3, 0}), 1.0);
  EXPECT_EQ(time.product({0, 10, 10, DType::kF32, 4}), 0);
}

TEST(OpTime, tiles_fill_the_multiprocessors_in_waves) {
  Cluster cluster = round_cluster();
  cluster.device.bytes_per_second = 1e18;
  cluster.device.multiprocessors = 8;
  const OpTime time(cluster, 1);
  const auto seconds = [&](std::int64_t m) {
    return time.product({m, 128, 1 << 20, DType::kF32, 0});
  };
  const double wave = 2.0 * 8 * 128 * 128 * (1 << 20) / 1e12;
  EXPECT_DOUBLE_EQ(seconds(128), wave);  // one tile takes as long as eight
  EXPECT_DOUBLE_EQ(seconds(8 * 128), wave);
  EXPECT_DOUBLE_EQ(seconds(8 * 128 + 1), 2 * wave);
  // Products side by side share waves.
  EXPECT_DOUBLE_EQ(time.product({128, 128, 1 << 20, DType::kF32, 0, 8}), wave);
}

TEST(OpTime, tables_replace_the_scalars) {
  Cluster cluster = round_cluster();
  cluster.gemm = {{100, 100, 100, DType::kF32, 1},
                  {1000, 1000, 1000, DType::kF32, 100},
                  {1000, 1000, 1000, DType::kBF16, 1}};
  cluster.memory = {{1e3, 1e-6}, {1e5, 1e-3}};
  const OpTime time(cluster, 1);
  EXPECT_DOUBLE_EQ(time.product({200, 100, 100, DType::kF32, 0}), 2);
  EXPECT_DOUBLE_EQ(time.product({1000, 1000, 2000, DType::kF32, 0}), 200);
  EXPECT_DOUBLE_EQ(time.product({100, 100, 100, DType::kBF16, 0}), 1e-3);
  EXPECT_DOUBLE_EQ(time.memory(500), 0.5e-6);
  EXPECT_DOUBLE_EQ(time.memory(1e4), 1e4 / ((1e9 + 1e8) / 2));  // half-way by the logarithm
  EXPECT_DOUBLE_EQ(time.memory(1e6), 1e-2);
}

TEST(OpTime, operands_of_a_steps_products_are_elsewhere) {
  Cluster cluster = round_cluster();
  cluster.gemm = {{100, 100, 100, DType::kF32, 1}};
  const ProductWork work{100, 100, 100, DType::kF32, 4};
  const double bytes = 3 * 100 * 100 * 4;
  const double alone = OpTime(cluster, 1).product(work);
  cluster.cold_bytes_per_second = bytes / 2;
  EXPECT_DOUBLE_EQ(OpTime(cluster, 1).product(work), alone + 2);
  EXPECT_DOUBLE_EQ(OpTime(cluster, 1, 4).product(work), (alone + 2) / 4);
}

TEST(OpTime, devices_share_the_memory_of_a_node) {
  Cluster cluster = round_cluster();
  cluster.shared_bytes_per_second = 2e9;
  EXPECT_DOUBLE_EQ(OpTime(cluster, 1).memory(1e9), 1);
  EXPECT_DOUBLE_EQ(OpTime(cluster, 4).memory(1e9), 2);
}

TEST(OpTime, ranks_of_a_cpu_share_its_cores) {
  Cluster cluster = round_cluster();  // of 4 ranks
  cluster.device.threads = 2;
  EXPECT_EQ(rank_speed(cluster, 4, 0), 1);
  EXPECT_EQ(rank_speed(cluster, 1, 0), 4);
  EXPECT_EQ(rank_speed(cluster, 1, 3), 1.5);  // as many threads as it is given
  EXPECT_EQ(rank_speed(cluster, 2, 8), 2);    // and cores as there are
  cluster.gemm = {{100, 100, 100, DType::kF32, 1}};
  cluster.memory = {{1e3, 1e-6}};
  EXPECT_DOUBLE_EQ(OpTime(cluster, 1, 4).product({100, 100, 100, DType::kF32, 0}), 0.25);
  EXPECT_DOUBLE_EQ(OpTime(cluster, 1, 4).memory(1e3), 0.25e-6);
  EXPECT_DOUBLE_EQ(OpTime(cluster, 1, 4).attention(1e12, DType::kF32), 0.25);
  cluster.device.kind = DeviceKind::kCuda;
  EXPECT_EQ(rank_speed(cluster, 1, 0), 1);
}

TEST(OpTime, a_gpus_kernels_start_and_end) {
  Cluster cluster = round_cluster();
  cluster.device.kind = DeviceKind::kCuda;
  EXPECT_DOUBLE_EQ(OpTime(cluster, 1).memory(1e9), 1 + OpTime::kKernelSeconds);
  EXPECT_EQ(OpTime(cluster, 1).memory(0), 0);
}

TEST(LinkTime, an_all_reduce_sends_2_of_n_minus_1_of_n) {
  Cluster cluster = round_cluster();
  cluster.devices_per_node = 1;
  for (const std::int64_t n : {2, 4, 8, 512}) {
    const double ranks = static_cast<double>(n);
    EXPECT_DOUBLE_EQ(2 * LinkTime(cluster, n, 1).ring(1e9), 2 * (ranks - 1) / ranks) << n;
  }
  EXPECT_EQ(LinkTime(cluster, 1, 1).ring(1e9), 0);
}

TEST(LinkTime, ranks_of_a_node_share_their_links) {
  const Cluster cluster = round_cluster();
  // In the node of 4: 3/4 of 1 GB at 2 GB/s.
  EXPECT_DOUBLE_EQ(LinkTime(cluster, 4, 1).ring(1e9), 0.375);
  // Over two nodes 4 links of 1 GB/s carry the ring; within, 2 GB/s are slower.
  EXPECT_DOUBLE_EQ(LinkTime(cluster, 8, 1).ring(1e9), 0.4375);
  // Behind a tensor axis of 2: two members a node; of 4: one.
  EXPECT_DOUBLE_EQ(LinkTime(cluster, 8, 2).ring(1e9), 0.4375);
  EXPECT_DOUBLE_EQ(LinkTime(cluster, 8, 4).ring(1e9), 0.875);
  EXPECT_TRUE(LinkTime(cluster, 2, 4).crosses_nodes());
  EXPECT_FALSE(LinkTime(cluster, 2, 2).crosses_nodes());
  // To all: 4 of 7 parts leave the node by the rank's own link.
  EXPECT_DOUBLE_EQ(LinkTime(cluster, 8, 1).to_all(7e9), 4);
  EXPECT_DOUBLE_EQ(LinkTime(cluster, 4, 1).to_all(3e9), 1.5);
  EXPECT_DOUBLE_EQ(LinkTime(cluster, 2, 1).hop(1e9), 0.5);
  EXPECT_DOUBLE_EQ(LinkTime(cluster, 2, 4).hop(1e9), 1);
}

TEST(LinkTime, ranks_that_read_memory_wait_once_for_an_all_reduce) {
  Cluster cluster = round_cluster();
  cluster.node.latency_seconds = 1e-3;
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    cluster.device.kind = kind;
    const double waits = kind == DeviceKind::kCpu ? 1 : 2;
    EXPECT_NEAR(LinkTime(cluster, 4, 1).all_reduce(1e9), 0.75 + waits * 2e-3, 1e-12);
    EXPECT_NEAR(LinkTime(cluster, 8, 1).all_reduce(1e9), 2 * LinkTime(cluster, 8, 1).ring(1e9),
                1e-12);
  }
  EXPECT_EQ(LinkTime(cluster, 1, 1).all_reduce(1e9), 0);
  EXPECT_NEAR(LinkTime(cluster, 4, 1).to_all(3e9, 4), 1.5 + 4 * 2e-3, 1e-12);
}

TEST(OpTime, more_ranks_than_cores_share_them) {
  Cluster cluster = round_cluster();
  cluster.device.kind = DeviceKind::kCpu;
  EXPECT_EQ(threads_of_core(cluster, 4, 1), 1);  // not known
  cluster.cores_per_node = 2;
  EXPECT_EQ(threads_of_core(cluster, 4, 1), 2);
  EXPECT_EQ(threads_of_core(cluster, 4, 0), 2);
  EXPECT_EQ(threads_of_core(cluster, 2, 3), 3);
  EXPECT_EQ(threads_of_core(cluster, 1, 1), 1);
  cluster.device.kind = DeviceKind::kCuda;
  EXPECT_EQ(threads_of_core(cluster, 4, 1), 1);
}

TEST(LinkTime, messages_have_a_latency) {
  Cluster cluster = round_cluster();
  cluster.node.latency_seconds = 1e-3;
  cluster.network.latency_seconds = 1e-2;
  EXPECT_NEAR(LinkTime(cluster, 4, 1).ring(1e-3), 2e-3, 1e-9);
  EXPECT_NEAR(LinkTime(cluster, 16, 1).ring(1e-3), 2.2e-2, 1e-9);
}

}  // namespace
}  // namespace trireme
