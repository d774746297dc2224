// Where GPUs are executed on the host their memory is the host's.

#include "comm/gpu_channel.h"
#include "comm/gpu_channel_base.h"

namespace trireme {

namespace {

/// Transfers go by the host's channel once the context's stream has put there what is sent.
class HostChannel final : public GpuChannel {
 public:
  HostChannel(Communicator& group, std::string_view name, Context& context)
      : GpuChannel(group.channel(name)), context_(context) {}

  Pending start_all_reduce(TensorView values) override {
    context_.synchronize();
    return host_->start_all_reduce(values);
  }
  Pending start_reduce_scatter(TensorView pieces) override {
    context_.synchronize();
    return host_->start_reduce_scatter(pieces);
  }
  Pending start_all_gather(TensorView pieces) override {
    context_.synchronize();
    return host_->start_all_gather(pieces);
  }
  Pending start_exchange(std::span<const Message> sends,
                         std::span<const Message> receives) override {
    context_.synchronize();
    return host_->start_exchange(sends, receives);
  }
  std::unique_ptr<Communicator> channel(std::string_view name) override {
    return std::make_unique<HostChannel>(*host_, name, context_);
  }
  [[nodiscard]] TrafficCounters counters() const override { return host_->counters(); }

 private:
  Context& context_;
};

}  // namespace

std::unique_ptr<Communicator> make_gpu_channel(Communicator& group, std::string_view name,
                                               Context& context, FlightRecorder&) {
  return std::make_unique<HostChannel>(group, name, context);
}

}  // namespace trireme
