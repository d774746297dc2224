#include "preflight/link_probe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>

#include "base/math.h"
#include "base/trace.h"

namespace trireme {

namespace {

/// Each of a few stretches is so long, or one time where that takes longer.
constexpr double kStretchSeconds = 0.05;
constexpr std::int64_t kTimesMax = 64;
constexpr int kStretches = 3;
constexpr int kRoundTrips = 8;

double seconds_since(std::int64_t begin_ns) {
  return static_cast<double>(steady_now_ns() - begin_ns) * 1e-9;
}

/// Seconds of one time of `work`: the best of several stretches, of as many times on all ranks that
/// take part. `agree` returns the most that one of them says.
template <class Work, class Agree>
double best_seconds(Context& context, const Work& work, const Agree& agree) {
  const auto timed = [&](std::int64_t times) {
    const std::int64_t begin_ns = steady_now_ns();
    for (std::int64_t i = 0; i < times; ++i) work();
    context.synchronize();
    return seconds_since(begin_ns) / static_cast<double>(times);
  };
  timed(1);  // connects
  const double once = agree(timed(1));
  const auto times = static_cast<std::int64_t>(
      std::clamp(kStretchSeconds / std::max(once, 1e-9), 1.0, static_cast<double>(kTimesMax)));
  double best = once;
  // What is slow is not made slower by looking thrice.
  const int stretches = once > kStretchSeconds ? 1 : kStretches;
  for (int i = 0; i < stretches; ++i) best = std::min(best, timed(times));
  return agree(best);
}

}  // namespace

double all_reduce_rate(Communicator& group, Communicator& channel, Context& context,
                       std::int64_t bytes) {
  const int ranks = group.size();
  if (ranks == 1) return 0;
  const std::int64_t whole = round_up(bytes, 64 * ranks);
  const Memory memory = channel.transfer_memory(context.device(), static_cast<std::size_t>(whole));
  const TensorView values{memory.data(), DType::kF32, {whole / 4}};
  const auto agree = [&](double seconds) {
    auto ns = static_cast<std::int64_t>(seconds * 1e9);
    group.maximum(std::span(&ns, 1));
    return static_cast<double>(ns) * 1e-9;
  };
  const double seconds = best_seconds(
      context, [&] { channel.start_all_reduce(values).wait(); }, agree);
  return 2.0 * (ranks - 1) / ranks * static_cast<double>(whole) / seconds;
}

int pair_rounds(int ranks) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(std::max(1, ranks) - 1)));
}

int partner_of(int rank, int round, int ranks) {
  const int partner = rank ^ (1 << round);
  return partner < ranks ? partner : -1;
}

std::uint64_t kind_of_pair(int rank, int round, const RankHosts& hosts) {
  const int partner = partner_of(rank, round, hosts.ranks());
  if (partner < 0) return 0;
  const auto across = [&](int of_rank) {
    const int other = partner_of(of_rank, round, hosts.ranks());
    return other >= 0 && hosts.of(other) != hosts.of(of_rank);
  };
  // Pairs of this kind at once at either end, in which a rank of that end takes part.
  const bool mine = across(rank);
  std::uint64_t most = 0;
  for (const int end : {rank, partner}) {
    std::uint64_t at_once = 0;
    for (const int other : hosts.ranks_of(hosts.of(end)))
      if (partner_of(other, round, hosts.ranks()) >= 0 && across(other) == mine) ++at_once;
    most = std::max(most, at_once);
  }
  return 2 * most + (mine ? 1 : 0);
}

double pair_rate(Communicator& job, Communicator& channel, Context& context, int round,
                 std::int64_t bytes) {
  const int partner = partner_of(job.rank(), round, job.size());
  job.barrier();
  if (partner < 0) return 0;
  const auto size = static_cast<std::size_t>(bytes);
  const Memory out = channel.transfer_memory(context.device(), size),
               in = channel.transfer_memory(context.device(), size);
  const auto agree = [&](double seconds) {
    double other = 0;
    const Message to{partner, std::as_writable_bytes(std::span(&seconds, 1))},
        from{partner, std::as_writable_bytes(std::span(&other, 1))};
    job.start_exchange({&to, 1}, {&from, 1}).wait();
    return std::max(seconds, other);
  };
  const double seconds = best_seconds(
      context,
      [&] {
        const Message to{partner, {out.data(), size}}, from{partner, {in.data(), size}};
        channel.start_exchange({&to, 1}, {&from, 1}).wait();
      },
      agree);
  return static_cast<double>(bytes) / seconds;
}

std::vector<ClockOffset> compare_clocks(Communicator& ranks,
                                        const std::function<std::int64_t()>& now_ns) {
  std::int64_t word = 0;
  const auto bytes = std::as_writable_bytes(std::span(&word, 1));
  const auto meet = [&](std::span<const Message> sends, std::span<const Message> receives) {
    ranks.start_exchange(sends, receives).wait();
  };
  if (ranks.rank() != 0) {
    const Message first{0, bytes};
    for (int i = 0; i < kRoundTrips; ++i) {
      meet({}, {&first, 1});
      word = now_ns();
      meet({&first, 1}, {});
    }
    return {};
  }
  std::vector<ClockOffset> offsets(1);
  for (int rank = 1; rank < ranks.size(); ++rank) {
    ClockOffset best{0, INFINITY};
    const Message other{rank, bytes};
    for (int i = 0; i < kRoundTrips; ++i) {
      const std::int64_t before_ns = now_ns();
      meet({&other, 1}, {});
      meet({}, {&other, 1});
      const std::int64_t after_ns = now_ns();
      const double half = static_cast<double>(after_ns - before_ns) / 2;
      if (half * 1e-9 >= best.error_seconds) continue;
      best = {(static_cast<double>(word - before_ns) - half) * 1e-9, half * 1e-9};
    }
    offsets.push_back(best);
  }
  return offsets;
}

}  // namespace trireme
