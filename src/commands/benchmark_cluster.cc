#include "commands/benchmark_cluster.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/file.h"
#include "base/human_format.h"
#include "device/cpu_info.h"
#include "device/gpu.h"
#include "device/topology.h"
#include "kernels/gemm/gemm_quantized.h"
#include "plan/link_measure.h"
#include "plan/machine_rates.h"
#include "plan/op_measure.h"
#include "plan/op_time.h"
#include "plan/step_time.h"

namespace trireme {

namespace {

/// Of a product that is timed: a tenth of a second on a core.
constexpr double kFlopsMax = 4e9, kGpuFlopsMax = 2e12;
constexpr std::int64_t kTransferBytesMax = 16 << 20;
constexpr std::int64_t kPassBytesMax = 256 << 20, kGpuPassBytes = 1 << 30;

/// On every rank the mean over all.
void take_mean(Communicator& replica, double& value) {
  replica.sum(std::span(&value, 1));
  value /= replica.size();
}

class ClusterMeasurement {
 public:
  ClusterMeasurement(Runtime& runtime, const PreparedRun& prepared)
      : runtime_(runtime),
        prepared_(prepared),
        replica_(runtime.replica()),
        measurement_{runtime.context, [this] { replica_.barrier(); }} {}

  Cluster run(const StepSample& step) {
    describe();
    measure_ops();
    measure_memory();
    measure_links();
    cluster_.efficiency = {1, 1, cluster_.efficiency.attention, 1, 1};
    note("efficiency", "1: the tables and rates are what is reached, not what a data sheet has");
    take_step(step);
    return std::move(cluster_);
  }

 private:
  void note(const char* path, std::string source) {
    cluster_.sources.emplace_back(path, std::move(source));
  }
  [[nodiscard]] std::string measured(std::string_view what) const {
    return fmt::format("measured: {}, {} at once, {}", what, counted(replica_.size(), "rank"),
                       runtime_.context.on_gpu()
                           ? std::string("a GPU each")
                           : counted(runtime_.options.threads, "thread") + " each");
  }
  [[nodiscard]] std::int64_t in_node() const { return runtime_.launch.local_size(); }

  void describe() {
    Context& context = runtime_.context;
    const bool gpu = context.on_gpu();
    cluster_.name = runtime_.launch.host_name();
    cluster_.devices_per_node = in_node();
    cluster_.device.kind = gpu ? DeviceKind::kCuda : DeviceKind::kCpu;
    cluster_.device.threads = runtime_.options.threads;
    if (gpu) {
      const gpu::Info info = gpu::info(context.device().index);
      cluster_.device.name = info.name;
      cluster_.device.memory_bytes = static_cast<std::int64_t>(info.total_bytes);
      cluster_.device.multiprocessors = info.multiprocessors;
      fp8_ = gemm_quantized_serves(context.device(), fp8_block(Fp8Recipe::kTensor));
    } else {
      cluster_.device.name = cpu_model_name();
      cluster_.device.memory_bytes = memory_bytes_available() / in_node();
      cluster_.cores_per_node = cores_in_node();
      note("cores_per_node", "of the host: those that its ranks may use");
    }
    note("devices_per_node", "measured: ranks of a host");
    note("device.memory_bytes", gpu ? "of the GPU" : "of the host (or its cgroup), a rank's share");
  }

  /// Cut to a quota, which usable_cpu_count() knows as long as nobody is bound to less.
  [[nodiscard]] std::int64_t cores_in_node() const {
    std::vector<std::vector<Core>> cores;
    for (const std::string& text : runtime_.launch.host().all_gather_text(text_of(usable_cores())))
      cores.push_back(parse_cores(text));
    std::int64_t usable = usable_cpu_count();
    runtime_.launch.host().sum(std::span(&usable, 1));
    return std::min(count_cpus(cores), usable);
  }

  [[nodiscard]] std::vector<DType> types() const {
    const DType compute = runtime_.store.compute();
    std::vector<DType> types = {DType::kF32};
    const bool gpu = runtime_.context.on_gpu();
    if (compute == DType::kBF16 || gpu || runtime_.context.isa() >= Isa::kAvx512Bf16)
      types.push_back(DType::kBF16);
    if (fp8_) types.push_back(DType::kF8E4M3);
    return types;
  }

  void measure_ops() {
    const RunConfig& config = prepared_.config;
    const std::int64_t tokens = config.data.sequence_length;
    const std::int64_t rows = prepared_.run.passes.micro * tokens;
    const std::vector<ProductShape> shapes = products_to_measure(
        config.model, rows, runtime_.context.on_gpu() ? kGpuFlopsMax : kFlopsMax);
    for (const DType type : types()) {
      for (ProductSeconds product : measure_products(measurement_, shapes, type)) {
        take_mean(replica_, product.seconds);
        take_peak(product);
        cluster_.gemm.push_back(product);
      }
    }
    note("gemm", measured("products of this config's layers and of others, the best of several"));
    const AttentionConfig& attention = config.model.layer(0).attention;
    const DType compute = runtime_.store.compute();
    double flops = measure_attention(measurement_, attention, tokens, compute);
    take_mean(replica_, flops);
    cluster_.efficiency.attention = flops / cluster_.peak_flops(compute);
    note("efficiency.attention",
         measured(fmt::format("causal, {} heads of {}, {} tokens, forward and backward",
                              attention.heads, attention.head_dim, tokens)));
  }

  /// The best product of a type is its rate.
  void take_peak(const ProductSeconds& product) {
    Cluster::Device::Tflops& peak = cluster_.device.tflops;
    double& of_type = is_fp8(product.type)           ? peak.fp8
                      : product.type == DType::kBF16 ? peak.bf16
                                                     : peak.fp32;
    const double flops = 2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) *
                         static_cast<double>(product.k);
    of_type = std::max(of_type, flops / product.seconds * 1e-12);
  }

  void measure_memory() {
    std::int64_t largest = runtime_.context.on_gpu()
                               ? kGpuPassBytes
                               : std::min(copy_bytes_beyond_cache(), kPassBytesMax);
    replica_.maximum(std::span(&largest, 1));
    const std::int64_t columns = prepared_.config.model.hidden;
    const DType compute = runtime_.store.compute();
    for (MemorySeconds pass : measure_passes(measurement_, columns, compute, largest)) {
      take_mean(replica_, pass.seconds);
      cluster_.memory.push_back(pass);
    }
    note("memory", measured("RMSNorms with a residual, which layers and updates are timed as"));
    const MemorySeconds& beyond = cluster_.memory.back();
    cluster_.device.bytes_per_second = beyond.bytes / beyond.seconds;
    note("device.bytes_per_second", measured("the last entry of memory, larger than the caches"));
    if (runtime_.context.on_gpu() || in_node() == 1) return;
    cluster_.shared_bytes_per_second =
        cluster_.device.bytes_per_second * static_cast<double>(in_node());
    // One rank of each host alone.
    std::array<double, 1> alone{};
    if (runtime_.launch.local_rank() == 0) {
      const Measurement mine{runtime_.context};
      const MemorySeconds pass = measure_passes(mine, columns, compute, largest).back();
      alone[0] = pass.bytes / pass.seconds;
    }
    replica_.sum(alone);
    const double hosts = static_cast<double>(replica_.size()) / static_cast<double>(in_node());
    cluster_.device.bytes_per_second = std::max(cluster_.device.bytes_per_second, alone[0] / hosts);
    cluster_.sources.back().second = "measured: as memory, by one rank of a host alone";
    note("shared_bytes_per_second", measured("as memory, all ranks of a host together"));
  }

  /// Of the ranks of `group`; nothing where it is this rank alone, or no group has several.
  std::optional<Cluster::Link> measure_link(Communicator& group) {
    std::int64_t most = group.size();
    replica_.maximum(std::span(&most, 1));
    if (most == 1) return std::nullopt;
    GpuChannels* const gpus = runtime_.channels.gpus.get();
    const std::unique_ptr<Communicator> channel =
        gpus != nullptr ? gpus->channel(group, "measured") : group.channel("measured");
    const std::vector<TransferSeconds> transfers =
        measure_transfers(*channel, runtime_.context, kTransferBytesMax);
    std::array<double, 3> sums{};
    if (!transfers.empty()) {
      const Cluster::Link link = link_of(transfers);
      sums = {link.bytes_per_second, link.latency_seconds, 1};
    }
    replica_.sum(sums);
    return Cluster::Link{sums[0] / sums[2], sums[1] / sums[2]};
  }

  void measure_links() {
    int first = replica_.rank();  // of this host
    runtime_.launch.host().broadcast(std::as_writable_bytes(std::span(&first, 1)), 0);
    const std::unique_ptr<Communicator> host = replica_.split(first);
    const std::unique_ptr<Communicator> across = replica_.split(runtime_.launch.local_rank());
    const std::optional<Cluster::Link> node = measure_link(*host);
    std::int64_t hosts = across->size();
    replica_.maximum(std::span(&hosts, 1));
    const std::optional<Cluster::Link> network = hosts > 1 ? measure_link(*across) : std::nullopt;
    const char* const how = "all-gathers, reduce-scatters and exchanges of 1 KiB to 16 MiB";
    cluster_.node = node.value_or(Cluster::Link{cluster_.device.bytes_per_second, 0});
    note("node", node ? measured(how)
                      : "not measured: one rank of a host; as fast as its memory, without latency");
    cluster_.network = network.value_or(cluster_.node);
    note("network", network ? measured(how)
                            : "not measured: one host; as in a node. Write what the network has");
  }

  void take_step(StepSample step) {
    if (runtime_.context.on_gpu()) {
      note("host", "not measured: launches of a layer, where a step is not replayed as a graph");
      return;
    }
    for (double* const each : {&step.ops.products, &step.ops.attention, &step.ops.passes,
                               &step.ops.update, &step.between_ops, &step.data, &step.seconds})
      take_mean(replica_, *each);
    const int stages = runtime_.mesh.extent(Axis::kPipeline);
    const double layers = static_cast<double>(runtime_.model.layer_count()) / stages;
    const double each =
        step.between_ops / (layers * static_cast<double>(prepared_.run.passes.accumulation));
    cluster_.host.layer_forward_seconds = cluster_.host.layer_backward_seconds = each / 2;
    cluster_.host.step_seconds = step.data;
    note("host", measured("what lies between the ops of this config's step, the median step's, and "
                          "in step_seconds what nothing else explains of it"));
    if (stages > 1) return;  // its ranks differ
    const StepLayout layout = step_layout(prepared_.config, prepared_.run);
    const OpSeconds alone = predicted_op_seconds(runtime_.model, layout, cluster_);
    const Cluster from_tables = cluster_;
    const auto unexplained = [&] {
      return std::max(0.0, step.seconds - predict_step(runtime_.model, layout, cluster_).seconds);
    };
    calibrate(cluster_, alone, step.ops);
    const double sharers = threads_of_core(cluster_, in_node(), runtime_.options.threads);
    if (sharers > 1) {
      step.ops = among_sharers(step.ops, sharers, unexplained());
      cluster_ = from_tables;
      calibrate(cluster_, alone, step.ops);
    }
    cluster_.host.step_seconds += unexplained();
    const auto times = [](double in_step, double by_tables) { return in_step / by_tables; };
    note("calibration",
         measured(fmt::format(
             "in this config's step products take {:.2f}, passes {:.2f}, attention "
             "{:.2f}, the update {:.2f} of the seconds that they take alone; gemm (or "
             "cold_bytes_per_second), memory and efficiency.attention are those of the step",
             times(step.ops.products, alone.products), times(step.ops.passes, alone.passes),
             times(step.ops.attention, alone.attention), times(step.ops.update, alone.update))));
  }

  Runtime& runtime_;
  const PreparedRun& prepared_;
  Communicator& replica_;
  const Measurement measurement_;
  Cluster cluster_;
  bool fp8_ = false;
};

}  // namespace

void check_cluster_file(const std::string& path) {
  if (is_there(path)) {
    throw ConfigError(
        "--write-cluster: {} exists, and nothing of yours is overwritten. Choose another name",
        path);
  }
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty() && !is_folder(parent))
    throw DataError("--write-cluster: the folder {0} does not exist. Make it: mkdir -p {0}",
                    parent.string());
}

Cluster measure_cluster(Runtime& runtime, const PreparedRun& prepared, const StepSample& step) {
  return ClusterMeasurement(runtime, prepared).run(step);
}

}  // namespace trireme
