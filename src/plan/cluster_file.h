#pragma once
// A cluster as a prediction sees it: what its devices and links do at most, which share of that a
// program reaches, what it draws and costs. Read from a file of the user's or of configs/clusters/.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "config/problem.h"
#include "device/device.h"

namespace trireme {

/// A measured product of [m, k] with [k, n].
struct ProductSeconds {
  std::int64_t m = 0, n = 0, k = 0;
  DType type = DType::kF32;  ///< of the operands; e4m3 stands for fp8
  double seconds = 0;
};
/// A measured pass that reads and writes so many bytes in all.
struct MemorySeconds {
  double bytes = 0, seconds = 0;
};

/// Layers of a system that is not this program, for published figures: what they move beside their
/// products. Bytes are those of forward; backward moves twice as many.
struct OtherProgram {
  bool flash = true;                 ///< attention "flash"; "unfused": scores stand in memory
  double elementwise_bytes = 0;      ///< of a token and unit of hidden size, where sequence
                                     ///< parallelism cuts: norms, dropout, residuals
  double cut_elementwise_bytes = 0;  ///< the same where the tensor axis always cuts: activations
  double score_bytes = 0;            ///< of a query, key and head, where scores stand in memory
  double logit_bytes = 0;            ///< of a token and row of the vocabulary
  double embedding_bytes = 0;        ///< of a token and unit of hidden size, a whole step
  double gradient_bytes = 4;         ///< of a parameter between ranks
  double optimizer_bytes = 38;       ///< of a parameter that a rank updates
  /// Shares of transfers that go on behind products.
  struct Overlap {
    double tensor = 0, data = 0, pipeline = 0;
  } overlap;
};

struct Cluster {
  static constexpr double kEfficiencyMax = 1.5;  ///< of a fit whose count of bytes is too high
  std::string name;
  std::int64_t devices_per_node = 1;
  /// Of CPUs the cores that ranks of a node share; 0: not known, each has its own.
  std::int64_t cores_per_node = 0;
  struct Device {
    DeviceKind kind = DeviceKind::kCuda;
    std::string name;
    std::int64_t threads = 1;  ///< of a CPU's rank
    struct Tflops {
      double fp32 = 0, bf16 = 0, fp8 = 0;  ///< 0: none
    } tflops;
    std::int64_t memory_bytes = 0;
    double bytes_per_second = 0;
    std::int64_t multiprocessors = 0;  ///< 0: products are not quantised in waves of tiles
  } device;
  double shared_bytes_per_second = 0;  ///< of all devices of a node together; 0: each has its own
  /// Operands of a step's products come at this rate from where others left them, beside the time
  /// of gemm, whose caches have them; 0: in no time.
  double cold_bytes_per_second = 0;
  std::vector<ProductSeconds> gemm;   ///< empty: the scalars above
  std::vector<MemorySeconds> memory;  ///< ascending; empty likewise
  std::optional<OtherProgram> program;
  /// Of one device, each way; the latency of one message.
  struct Link {
    double bytes_per_second = 0, latency_seconds = 0;
  } node, network;
  /// Shares of the rates above that are reached. Those of gemm and memory do not scale the tables.
  struct Efficiency {
    double gemm = 0.75, memory = 0.85, attention = 0.6, node = 0.75, network = 0.8;
    std::optional<double> gemm_fp8 = {};  ///< of products in fp8; not given: gemm
  } efficiency;
  /// Host time: a layer that is not replayed as a graph takes no less.
  struct Host {
    double layer_forward_seconds = 0, layer_backward_seconds = 0;
    double tensor_growth = 0;  ///< more of it for each doubling of the tensor axis
    double step_seconds = 0;   ///< once in a step, beside all else
  } host;
  struct Power {
    std::optional<double> node_idle_watts, device_watts;  ///< of a busy device, above idle
    double pue = 1;                                       ///< of the site, per watt of its nodes
  } power;
  struct Price {
    std::optional<double> device_hour, kwh, storage_gb_month;  ///< GB: 10^9 bytes
  } price;
  std::vector<std::pair<std::string, std::string>> sources;  ///< where numbers come from, by path

  /// Of products of this type; fp8 without a rate is bf16's, bf16 without one fp32's.
  [[nodiscard]] double peak_flops(DType type) const;
};

/// Reads every key, notes each fault ("cluster.device.tflops.bf16", found, legal, nearest) and
/// leaves defaults where there is one.
Cluster parse_cluster(const Json& json, std::vector<Problem>& problems);

/// By the path of a file, or by the name of one of configs/clusters/. Faults of what it holds go to
/// `problems`, and that there is none of this name ("--cluster"). Throws ConfigError where it is no
/// JSON, DataError where a file cannot be read.
Cluster read_cluster(const std::string& path_or_name, std::vector<Problem>& problems);

/// What parse_cluster reads back; of optional keys those that are given.
Json cluster_file_json(const Cluster& cluster);

/// Names of configs/clusters/, in order; empty where they are not installed.
std::vector<std::string> cluster_names();

}  // namespace trireme
