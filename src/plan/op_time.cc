#include "plan/op_time.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/math.h"

namespace trireme {

namespace {

constexpr std::int64_t kTile = 128;

/// How much longer whole waves of whole tiles take than the product's own arithmetic.
double wave_factor(const ProductWork& work, std::int64_t multiprocessors) {
  if (multiprocessors == 0) return 1;
  const auto tiles = static_cast<double>(ceil_div(work.m, kTile) * ceil_div(work.n, kTile));
  const auto all = static_cast<double>(multiprocessors);
  const double area = static_cast<double>(kTile * kTile);
  return std::ceil(tiles * work.count / all) * all * area /
         (static_cast<double>(work.m) * static_cast<double>(work.n) * work.count);
}

double log_ratio(std::int64_t a, std::int64_t b) {
  return std::abs(std::log(static_cast<double>(a) / static_cast<double>(b)));
}

double flops_of(std::int64_t m, std::int64_t n, std::int64_t k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

}  // namespace

double rank_speed(const Cluster& cluster, std::int64_t busy, std::int64_t threads) {
  if (cluster.device.kind != DeviceKind::kCpu) return 1;
  const double share = static_cast<double>(cluster.devices_per_node) / static_cast<double>(busy);
  if (threads == 0) return share;
  return std::min(share,
                  static_cast<double>(threads) / static_cast<double>(cluster.device.threads));
}

double threads_of_core(const Cluster& cluster, std::int64_t busy, std::int64_t threads) {
  if (cluster.device.kind != DeviceKind::kCpu || cluster.cores_per_node == 0) return 1;
  const std::int64_t each = threads == 0 ? 1 : threads;  // 0: cores are shared out among ranks
  return std::max(1.0,
                  static_cast<double>(busy * each) / static_cast<double>(cluster.cores_per_node));
}

OpTime::OpTime(const Cluster& cluster, std::int64_t busy, double speed)
    : cluster_(cluster),
      speed_(speed),
      bytes_per_second_(cluster.device.bytes_per_second),
      kernel_seconds_(cluster.device.kind == DeviceKind::kCuda ? kKernelSeconds : 0) {
  if (cluster.shared_bytes_per_second > 0)
    bytes_per_second_ =
        std::min(bytes_per_second_, cluster.shared_bytes_per_second / static_cast<double>(busy));
  bytes_per_second_ *= cluster.efficiency.memory;
}

double OpTime::arithmetic(const ProductWork& work) const {
  const double flops = flops_of(work.m, work.n, work.k) * work.count;
  const ProductSeconds* nearest = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const ProductSeconds& entry : cluster_.gemm) {
    if (is_fp8(entry.type) ? !is_fp8(work.type) : entry.type != work.type) continue;
    const double distance =
        log_ratio(entry.m, work.m) + log_ratio(entry.n, work.n) + log_ratio(entry.k, work.k);
    if (distance >= least) continue;
    least = distance;
    nearest = &entry;
  }
  if (nearest != nullptr)
    return flops / flops_of(nearest->m, nearest->n, nearest->k) * nearest->seconds / speed_;
  const Cluster::Efficiency& of = cluster_.efficiency;
  return flops * wave_factor(work, cluster_.device.multiprocessors) /
         (speed_ * cluster_.peak_flops(work.type) *
          (is_fp8(work.type) ? of.gemm_fp8.value_or(of.gemm) : of.gemm));
}

double OpTime::product(const ProductWork& work) const {
  if (work.m <= 0 || work.n <= 0 || work.k <= 0 || work.count <= 0) return 0;
  const auto m = static_cast<double>(work.m), n = static_cast<double>(work.n);
  const double operands =
      static_cast<double>(size_of(work.type)) * static_cast<double>(work.k) * (m + n);
  const double bytes = work.count * (operands + work.out_bytes * m * n);
  const double cold = cluster_.cold_bytes_per_second;
  return std::max(arithmetic(work), bytes / bytes_per_second_) +
         (cold > 0 ? bytes / (cold * speed_) : 0) + kernel_seconds_;
}

double OpTime::memory(double bytes) const {
  if (bytes <= 0) return 0;
  const std::vector<MemorySeconds>& table = cluster_.memory;
  if (table.empty()) return bytes / bytes_per_second_ + kernel_seconds_;
  const auto rate = [this](const MemorySeconds& entry) {
    return speed_ * entry.bytes / entry.seconds;
  };
  const auto above = std::find_if(table.begin(), table.end(),
                                  [&](const MemorySeconds& entry) { return entry.bytes >= bytes; });
  if (above == table.begin()) return bytes / rate(table.front());
  if (above == table.end()) return bytes / rate(table.back());
  const MemorySeconds& below = *(above - 1);
  const double part = std::log(bytes / below.bytes) / std::log(above->bytes / below.bytes);
  return bytes / (rate(below) + part * (rate(*above) - rate(below)));
}

double OpTime::attention(double flops, DType type) const {
  if (flops <= 0) return 0;
  return flops / (speed_ * cluster_.peak_flops(type) * cluster_.efficiency.attention) +
         kernel_seconds_;
}

LinkTime::LinkTime(const Cluster& cluster, std::int64_t ranks, std::int64_t stride)
    : ranks_(ranks),
      in_node_(std::clamp<std::int64_t>(cluster.devices_per_node / stride, 1, ranks)),
      reads_memory_(cluster.device.kind == DeviceKind::kCpu && in_node_ == ranks),
      node_rate_(cluster.node.bytes_per_second * cluster.efficiency.node),
      network_rate_(cluster.network.bytes_per_second * cluster.efficiency.network),
      node_latency_(cluster.node.latency_seconds),
      network_latency_(cluster.network.latency_seconds) {}

double LinkTime::latency() const {
  const auto hops = [](std::int64_t ends) {
    return std::ceil(std::log2(static_cast<double>(ends)));
  };
  return node_latency_ * hops(in_node_) + network_latency_ * hops(ceil_div(ranks_, in_node_));
}

double LinkTime::ring(double bytes) const {
  if (ranks_ == 1 || bytes <= 0) return 0;
  const auto n = static_cast<double>(ranks_);
  const double sent = (n - 1) / n * bytes;
  double seconds = in_node_ > 1 ? sent / node_rate_ : 0;
  if (crosses_nodes())
    seconds = std::max(seconds, sent / (network_rate_ * static_cast<double>(in_node_)));
  return seconds + latency();
}

double LinkTime::all_reduce(double bytes) const {
  return 2 * ring(bytes) - (reads_memory_ && bytes > 0 && ranks_ > 1 ? latency() : 0);
}

double LinkTime::rings(double bytes, double times) const {
  return times == 2 ? all_reduce(bytes) : times * ring(bytes);
}

double LinkTime::to_all(double bytes, double calls) const {
  if (ranks_ == 1 || bytes <= 0) return 0;
  const double part = bytes / static_cast<double>(ranks_ - 1);
  const double within = static_cast<double>(in_node_ - 1) * part / node_rate_;
  const double across = static_cast<double>(ranks_ - in_node_) * part / network_rate_;
  return std::max(within, across) + calls * latency();
}

double LinkTime::hop(double bytes) const {
  if (ranks_ == 1 || bytes <= 0) return 0;
  // Where a node ends between two of them everybody waits for that edge.
  return crosses_nodes() ? network_latency_ + bytes / network_rate_
                         : node_latency_ + bytes / node_rate_;
}

}  // namespace trireme
