#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <thread>

#include "preflight/inspection.h"
#include "preflight/speed_probe.h"

namespace trireme {

namespace {

/// For all turns of a host together, and for one at most.
constexpr double kProductSeconds = 6, kCopySeconds = 4, kProductTurn = 0.3, kCopyTurn = 0.15;

/// On the ranks of this host, one turn after another; the others sleep, as waiting takes cores.
void in_turns(const Inspection& at, int turn, int turns, double seconds,
              const std::function<void()>& work) {
  for (int now = 0; now < turns; ++now) {
    at.launch.host().barrier();
    if (now == turn) {
      work();
    } else {
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    }
  }
  at.launch.host().barrier();
}

/// What `measure` says of each rank, again until no rank is slow beside its kind.
std::vector<Speed> settled(const Inspection& at, const std::function<Speed()>& measure) {
  Speed mine;
  std::vector<Speed> all;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const Speed now = measure();
    if (now.per_second > mine.per_second) mine = now;
    mine.kind = at.kind;
    all = gathered(at.job, mine);
    if (below(rates_of(all), kDeviceFloor).empty()) break;
  }
  return all;
}

/// `advice`: where nothing better is known.
void add_speeds(Inspection& at, std::string name, const std::vector<Speed>& speeds,
                const RateText& text, const char* advice) {
  Finding finding = speeds_alike(std::move(name), speeds, at.hosts, text);
  if (finding.advice.empty()) finding.advice = advice;
  at.add(std::move(finding));
}

/// Of the kind that most ranks are; others compute other bits by right.
void add_bits(Inspection& at, const std::vector<Speed>& speeds, const std::vector<Json>& told) {
  std::map<std::uint64_t, int> counts;
  for (const Speed& speed : speeds) ++counts[speed.kind];
  const auto usual = std::max_element(counts.begin(), counts.end(),
                                      [](auto& a, auto& b) { return a.second < b.second; });
  const char* const advice =
      "do not train on it: memory or arithmetic is at fault (run a memory test, take the host "
      "out)";
  std::vector<std::string> bits = texts_of(told, "bits");
  std::vector<int> unsteady;
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    if (!told[rank].find("steady")->as_bool()) unsteady.push_back(static_cast<int>(rank));
    if (speeds[rank].kind != usual->first && unsteady.empty()) bits[rank].clear();
  }
  Finding finding = equal_everywhere("bits", bits, at.hosts, advice);
  if (finding.status == FindingStatus::kOk && !unsteady.empty())
    finding = {"bits", FindingStatus::kOdd, unsteady, bits.front(), "one result", advice};
  at.add(std::move(finding));
}

}  // namespace

void check_speed(Inspection& at, Context& context) {
  DType type = at.on_gpu() ? DType::kBF16 : DType::kF32;
  if (at.prepared != nullptr) type = at.prepared->run.compute;
  SpeedProbe probe(context, type);
  const double product_seconds = std::min(kProductTurn, kProductSeconds / at.turns);
  const std::vector<Speed> products = settled(at, [&] {
    Speed speed;
    in_turns(at, at.turn, at.turns, product_seconds,
             [&] { speed = probe.products(product_seconds); });
    return speed;
  });
  at.busy = hosts_are_busy(products);
  const int ranks = at.launch.local_size();
  const double copy_seconds = std::min(kCopyTurn, kCopySeconds / ranks);
  const auto alone = [&](Speed (SpeedProbe::*measure)(double)) {
    return settled(at, [&] {
      Speed speed;
      in_turns(at, at.launch.local_rank(), ranks, copy_seconds,
               [&] { speed = (probe.*measure)(copy_seconds); });
      return speed;
    });
  };
  const std::vector<Speed> copies = alone(&SpeedProbe::copies);
  std::vector<Speed> to_host(copies.size());
  if (at.on_gpu()) to_host = alone(&SpeedProbe::copies_to_host);
  Json mine;
  mine["bits"] =
      probe.steady() ? "xxh3 " + probe.bits().substr(0, 12) : "other bits from product to product";
  mine["steady"] = probe.steady();
  const std::vector<Json> told = told_to_first(at.job, mine);
  if (told.empty()) return;
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    at.report.ranks[rank].flops_per_second = products[rank].per_second;
    at.report.ranks[rank].copy_bytes_per_second = copies[rank].per_second;
    at.report.ranks[rank].host_copy_bytes_per_second = to_host[rank].per_second;
  }
  add_speeds(at, fmt::format("products ({})", name_of(type)), products, flops_text,
             at.on_gpu() ? "look at that GPU's clocks, heat and other users (nvidia-smi -q)"
                         : "look at that host's clock frequency and heat (cpupower frequency-info, "
                           "sensors), and what runs on its other cores");
  add_bits(at, products, told);
  add_speeds(at, "copies", copies, bandwidth_text,
             at.on_gpu() ? "look at that GPU's memory clock and errors (nvidia-smi -q)"
                         : "look at where that rank's memory lies (numactl --hardware), and "
                           "whether all channels have modules (dmidecode -t memory)");
  if (!at.on_gpu()) return;
  add_speeds(at, "copies to the host", to_host, bandwidth_text,
             "look at that card's PCIe link, and whether the rank runs on its side of the host");
}

}  // namespace trireme
