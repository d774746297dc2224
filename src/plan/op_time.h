#pragma once
// Seconds of one op or transfer on a cluster: closed forms, no state. Products and passes over
// memory as a roofline (Williams et al. 2009); transfers as latency and bandwidth of a ring
// (Thakur et al. 2005, "Optimization of Collective Communication Operations in MPICH").

#include <cstdint>

#include "parallel/mesh_shape.h"
#include "plan/cluster_file.h"

namespace trireme {

/// [m, k] x [k, n], `count` times.
struct ProductWork {
  std::int64_t m = 0, n = 0, k = 0;
  DType type = DType::kF32;  ///< of the operands
  double out_bytes = 0;      ///< of an element of the result that are read and written
  double count = 1;
};

/// How much faster a rank is than the cluster file's, where `busy` of a node compute: a CPU's cores
/// and caches are shared out among those that are there, each with `threads` (0: its share).
double rank_speed(const Cluster& cluster, std::int64_t busy, std::int64_t threads);

/// How many threads a core of a CPU's node has, where `busy` ranks compute at once; 1 where each
/// has cores of its own.
double threads_of_core(const Cluster& cluster, std::int64_t busy, std::int64_t threads);

/// What one device of a cluster takes, where `busy` of its node compute at once, `speed` times as
/// fast as the file has it.
class OpTime {
 public:
  OpTime(const Cluster& cluster, std::int64_t busy, double speed = 1);

  /// The longer of arithmetic and memory:
  ///   2 m n k q / (peak · efficiency),  q: tiles of 128 x 128 fill the multiprocessors in waves,
  ///   bytes / rate of memory
  /// With a table: 2 m n k over the rate of the product in it that is nearest (by the logarithms
  /// of its sizes) of this type. Where products of a step were found slower than alone, bytes over
  /// cold_bytes_per_second more.
  [[nodiscard]] double product(const ProductWork& work) const;
  /// A pass that reads and writes so many bytes; with a table by a line over the logarithm.
  [[nodiscard]] double memory(double bytes) const;
  /// Attention that keeps no scores, at efficiency.attention of the peak.
  [[nodiscard]] double attention(double flops, DType type) const;

  /// A GPU's kernel takes this beside its work: it starts, and its last blocks end.
  static constexpr double kKernelSeconds = 3e-6;

 private:
  [[nodiscard]] double arithmetic(const ProductWork& work) const;
  const Cluster& cluster_;
  double speed_;
  double bytes_per_second_;
  double kernel_seconds_;
};

/// Ranks that differ along one axis (or several that fold), as nodes see them: every node that they
/// touch has `in_node` of them.
class LinkTime {
 public:
  /// `ranks` of them, each `stride` ranks behind the one before.
  LinkTime(const Cluster& cluster, std::int64_t ranks, std::int64_t stride);

  [[nodiscard]] std::int64_t ranks() const { return ranks_; }
  [[nodiscard]] bool crosses_nodes() const { return in_node_ < ranks_; }
  /// All-gather or reduce-scatter of `bytes` in all, around a ring: each rank sends (n-1)/n of
  /// them. Between nodes the members of a node share their network links.
  [[nodiscard]] double ring(double bytes) const;
  /// Both. Ranks of a CPU's node, which read each other's memory, wait for each other once.
  [[nodiscard]] double all_reduce(double bytes) const;
  /// So many of the first; two are the second.
  [[nodiscard]] double rings(double bytes, double times) const;
  /// Every rank sends `bytes` to all others together, in equal parts, in so many calls.
  [[nodiscard]] double to_all(double bytes, double calls = 1) const;
  /// From a rank to the next.
  [[nodiscard]] double hop(double bytes) const;
  /// Of a tree over the ranks of a node, and one over nodes.
  [[nodiscard]] double latency() const;

 private:
  std::int64_t ranks_, in_node_;
  bool reads_memory_;
  double node_rate_, network_rate_, node_latency_, network_latency_;
};

}  // namespace trireme
