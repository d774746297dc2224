// Where GPUs are executed on the host their memory is the host's.

#include <cuda_runtime_api.h>

#include <deque>

#include "comm/gpu_channel.h"
#include "comm/gpu_channel_base.h"
#include "device/gpu.h"

namespace trireme {

namespace {

/// Transfers go by the host's channel behind the context's stream; recorded ones within the graph.
class HostChannel final : public GpuChannel {
 public:
  HostChannel(Communicator& group, std::string_view name, Context& context)
      : GpuChannel(group.channel(name)), context_(context) {}

  Pending start_all_reduce(TensorView values) override {
    count(all_reduce_bytes_sent(values.count(), values.dtype, size(), rank()));
    return start([this, values] { return host_->start_all_reduce(values); });
  }
  Pending start_reduce_scatter(TensorView shards) override {
    count(one_way_bytes_sent(static_cast<std::int64_t>(shards.bytes()), size()));
    return start([this, shards] { return host_->start_reduce_scatter(shards); });
  }
  Pending start_all_gather(TensorView shards) override {
    count(one_way_bytes_sent(static_cast<std::int64_t>(shards.bytes()), size()));
    return start([this, shards] { return host_->start_all_gather(shards); });
  }
  Pending start_exchange(std::span<const Message> sends,
                         std::span<const Message> receives) override {
    count(bytes_sent(sends));
    return start([this, to = std::vector(sends.begin(), sends.end()),
                  from = std::vector(receives.begin(), receives.end())] {
      return host_->start_exchange(to, from);
    });
  }
  std::unique_ptr<Communicator> channel(std::string_view name) override {
    return std::make_unique<HostChannel>(*host_, name, context_);
  }
  [[nodiscard]] TrafficCounters counters() const override {
    TrafficCounters counters = counters_;
    counters.exposed_ns = host_->counters().exposed_ns;
    return counters;
  }

 private:
  /// Begun anew at each replay.
  struct Recorded {
    std::function<Pending()> begin;
    Pending pending = {};
    gpu::Event done = gpu::Event(gpu::make_event());
  };

  Pending start(std::function<Pending()> begin) {
    void* const stream = context_.exec().stream;
    if (!gpu::capturing(stream)) {
      context_.synchronize();
      return begin();
    }
    Recorded& recorded = recorded_.emplace_back(Recorded{std::move(begin)});
    void* const transfers = context_.recorded_transfers();
    gpu::record(recorded.done.get(), stream);
    gpu::wait(transfers, recorded.done.get());
    call(transfers, recorded, [](void* of) {
      auto& transfer = *static_cast<Recorded*>(of);
      transfer.pending = transfer.begin();
    });
    gpu::record(recorded.done.get(), transfers);
    return Pending([&recorded, stream] {
      gpu::wait(stream, recorded.done.get());
      call(stream, recorded, [](void* of) { static_cast<Recorded*>(of)->pending.wait(); });
    });
  }
  static void call(void* stream, Recorded& recorded, void (*function)(void*)) {
    const cudaError_t error =
        cudaLaunchHostFunc(static_cast<cudaStream_t>(stream), function, &recorded);
    if (error != cudaSuccess)
      throw InternalError("cudaLaunchHostFunc: {}", cudaGetErrorString(error));
  }

  Context& context_;
  std::deque<Recorded> recorded_;  ///< as long as a graph may replay them
};

}  // namespace

std::unique_ptr<Communicator> make_gpu_channel(Communicator& group, std::string_view name,
                                               Context& context, FlightRecorder&) {
  return std::make_unique<HostChannel>(group, name, context);
}

}  // namespace trireme
