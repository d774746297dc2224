#include "plan/link_measure.h"

#include <algorithm>
#include <cmath>

#include "base/math.h"
#include "base/trace.h"
#include "plan/op_measure.h"

namespace trireme {

namespace {

constexpr std::int64_t kBytesMin = 1 << 10, kBytesStep = 16;
/// What is shorter is mostly latency.
constexpr double kLatencyBytes = 4096, kBandwidthBytes = 65536;
constexpr double kBytesTimed = 4e6;
constexpr std::int64_t kTimesMax = 20, kRepetitions = 16;
/// A step has work between its transfers, behind which those who carry them have gone to sleep.
constexpr std::int64_t kWorkNs = 300'000, kLatencyRepetitions = 33;

void work_for(std::int64_t ns) {
  for (const std::int64_t begin_ns = steady_now_ns(); steady_now_ns() - begin_ns < ns;) continue;
}

/// The median of single transfers behind work, in place of the least of many back to back.
double latency_of(const Measurement& measurement, const std::function<void()>& transfer) {
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < kLatencyRepetitions; ++i) {
    measurement.together();
    work_for(kWorkNs);
    const std::int64_t begin_ns = steady_now_ns();
    transfer();
    measurement.context.synchronize();
    seconds.push_back(static_cast<double>(steady_now_ns() - begin_ns) * 1e-9);
  }
  return median_of(std::move(seconds));
}

}  // namespace

Cluster::Link link_of(std::span<const TransferSeconds> transfers) {
  double latency = 0, count = 0;
  for (const TransferSeconds& each : transfers) {
    if (each.bytes > kLatencyBytes) continue;
    latency += each.seconds / each.messages;
    ++count;
  }
  Cluster::Link link;
  link.latency_seconds = latency / std::max(1.0, count);
  double logs = 0;
  count = 0;
  for (const TransferSeconds& each : transfers) {
    if (each.bytes < kBandwidthBytes) continue;
    // A tenth at least is not latency: what was measured apart may exceed the whole.
    const double moving =
        std::max(each.seconds - each.messages * link.latency_seconds, 0.1 * each.seconds);
    logs += std::log(each.bytes / moving);
    ++count;
  }
  link.bytes_per_second = std::exp(logs / std::max(1.0, count));
  return link;
}

std::vector<TransferSeconds> measure_transfers(Communicator& channel, Context& context,
                                               std::int64_t bytes_max) {
  std::vector<TransferSeconds> measured;
  const int ranks = channel.size();
  if (ranks == 1) return measured;
  const std::int64_t most = round_up(bytes_max, 64 * ranks);
  const Memory memory = channel.transfer_memory(context.device(), static_cast<std::size_t>(most));
  const Memory other = channel.transfer_memory(context.device(), static_cast<std::size_t>(most));
  const Measurement measurement{context, [&] { channel.barrier(); }};
  const double steps = std::ceil(std::log2(ranks));
  const int next = (channel.rank() + 1) % ranks, last = (channel.rank() + ranks - 1) % ranks;
  for (std::int64_t bytes = kBytesMin; bytes <= bytes_max; bytes *= kBytesStep) {
    const std::int64_t whole = round_up(bytes, 64 * ranks);
    const TensorView operand{memory.data(), DType::kF32, {whole / 4}};
    const std::span<std::byte> out{memory.data(), static_cast<std::size_t>(whole)},
        in{other.data(), static_cast<std::size_t>(whole)};
    const double sent = static_cast<double>(one_way_bytes_sent(whole, ranks));
    const std::int64_t times = std::clamp<std::int64_t>(
        static_cast<std::int64_t>(kBytesTimed / static_cast<double>(whole)), 1, kTimesMax);
    const auto time = [&](double of_bytes, double messages, const std::function<void()>& work) {
      const double seconds = of_bytes > kLatencyBytes
                                 ? seconds_of(measurement, {times, kRepetitions}, work)
                                 : latency_of(measurement, work);
      measured.push_back({of_bytes, messages, seconds});
    };
    time(sent, steps, [&] { channel.start_all_gather(operand).wait(); });
    time(sent, steps, [&] { channel.start_reduce_scatter(operand).wait(); });
    time(static_cast<double>(whole), 1, [&] {
      const Message to{next, out}, from{last, in};
      channel.start_exchange({&to, 1}, {&from, 1}).wait();
    });
  }
  return measured;
}

}  // namespace trireme
