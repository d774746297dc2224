// Where GPUs are executed on the host their memory is the host's.

#include "comm/gpu_channel.h"

namespace trireme {

namespace {

class HostChannel final : public Communicator {
 public:
  HostChannel(Communicator& group, std::string_view name, Context& context)
      : channel_(group.channel(name)), context_(context) {}

  [[nodiscard]] int rank() const override { return channel_->rank(); }
  [[nodiscard]] int size() const override { return channel_->size(); }
  void barrier() override { channel_->barrier(); }
  void broadcast(std::span<std::byte> bytes, int root) override {
    channel_->broadcast(bytes, root);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    channel_->all_gather(mine, all);
  }
  std::vector<std::string> all_gather_text(std::string_view mine) override {
    return channel_->all_gather_text(mine);
  }
  Pending start_all_reduce(std::span<float> values) override {
    context_.synchronize();
    return channel_->start_all_reduce(values);
  }
  std::unique_ptr<Communicator> split(int color) override { return channel_->split(color); }
  std::unique_ptr<Communicator> channel(std::string_view name) override {
    return channel_->channel(name);
  }
  [[nodiscard]] TrafficCounters counters() const override { return channel_->counters(); }

 private:
  std::unique_ptr<Communicator> channel_;
  Context& context_;
};

}  // namespace

std::unique_ptr<Communicator> make_gpu_channel(Communicator& group, std::string_view name,
                                               Context& context, FlightRecorder&) {
  return std::make_unique<HostChannel>(group, name, context);
}

}  // namespace trireme
