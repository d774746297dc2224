#include "comm/collective_check.h"

#include <algorithm>
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
    case Operation::kCombine:
      return "combine";
    case Operation::kExchange:
      return "exchange";
  }
  return "an unknown operation";
}

void Descriptor::set_channel(std::string_view channel_name) noexcept {
  channel = 2166136261U;  // FNV-1a
  for (const char each : channel_name)
    channel = (channel ^ static_cast<unsigned char>(each)) * 16777619U;
  if (channel_name.size() >= sizeof name)
    channel_name.remove_prefix(channel_name.size() - (sizeof name - 1));
  std::copy(channel_name.begin(), channel_name.end(), name);
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
  const bool same = a.channel == b.channel;
  const auto text = [&](const Descriptor& call, int rank) {
    const std::string place =
        call.sequence == 0 ? "" : fmt::format(" as its collective {}", call.sequence);
    return fmt::format("rank {} started {}{}{}{}", rank, text_of(call), place, same ? "" : " on ",
                       same ? "" : call.name);
  };
  throw InternalError(
      "{}{}, but {} (their bytes would mix, or both would wait for ever). This is a defect of the "
      "program.",
      same ? fmt::format("on {}, ", channel) : "", text(a, rank_a), text(b, rank_b));
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
