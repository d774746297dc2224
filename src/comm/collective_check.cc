#include "comm/collective_check.h"

#include <string>

#include "base/error.h"

namespace trireme {

const char* name_of(Operation operation) noexcept {
  switch (operation) {
    case Operation::kNone:
      return "nothing";
    case Operation::kBarrier:
      return "barrier";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kAllGatherText:
      return "all_gather_text";
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kReduceScatter:
      return "reduce_scatter";
    case Operation::kExchange:
      return "exchange";
  }
  return "an unknown operation";
}

std::uint32_t channel_hash(std::string_view name) noexcept {
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const char each : name) hash = (hash ^ static_cast<unsigned char>(each)) * 16777619U;
  return hash;
}

namespace {
bool agree(const Descriptor& a, const Descriptor& b) {
  const bool same = a.operation == b.operation && a.dtype == b.dtype && a.channel == b.channel &&
                    a.sequence == b.sequence;
  if (a.operation == Operation::kExchange) return same && a.bytes == b.other && a.other == b.bytes;
  return same && a.bytes == b.bytes && a.other == b.other;
}

/// "all_reduce of 4096 bytes (fp32)"
std::string text_of(const Descriptor& call) {
  switch (call.operation) {
    case Operation::kBarrier:
    case Operation::kAllGatherText:
      return name_of(call.operation);
    case Operation::kBroadcast:
      return fmt::format("broadcast of {} bytes from its rank {}", call.bytes, call.other);
    case Operation::kExchange:
      return fmt::format("exchange (sends {} bytes there, expects {})", call.bytes, call.other);
    default:
      return fmt::format("{} of {} bytes ({})", name_of(call.operation), call.bytes,
                         name_of(call.dtype));
  }
}

[[noreturn]] void refuse(const Descriptor& a, int rank_a, const Descriptor& b, int rank_b,
                         std::string_view channel) {
  const char* const channels = a.channel == b.channel ? "" : ", and their channels differ in name";
  throw InternalError(
      "on {}, rank {} started {} as its collective {}, but rank {} started {} as its collective {}"
      "{} (their bytes would mix, or both would wait for ever). This is a defect of the program.",
      channel, rank_a, text_of(a), a.sequence, rank_b, text_of(b), b.sequence, channels);
}
}  // namespace

void compare_descriptors(std::span<const Descriptor> by_rank, std::span<const Descriptor> mine,
                         int me, std::span<const int> names, std::string_view channel) {
  const auto my = static_cast<std::size_t>(me);
  if (by_rank[my].operation != Operation::kExchange) {
    // All ranks see the same list here, and so say the same.
    for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
      if (!agree(by_rank[0], by_rank[rank])) {
        refuse(by_rank[0], names[0], by_rank[rank], names[rank], channel);
      }
    }
    return;
  }
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (rank == my || by_rank[rank].operation == Operation::kNone) continue;
    if (agree(mine[rank], by_rank[rank])) continue;
    if (me < static_cast<int>(rank)) {
      refuse(mine[rank], names[my], by_rank[rank], names[rank], channel);
    }
    refuse(by_rank[rank], names[rank], mine[rank], names[my], channel);
  }
}

}  // namespace trireme
