#pragma once
// What `run.check_collectives` compares: each transfer and each blocking call is described in a few
// bytes, which the ranks exchange before it begins, so that two ranks in different places of the
// program are named instead of hanging or mixing their bytes.

#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"

namespace trireme {

enum class Operation : std::uint16_t {
  kNone,
  kBarrier,
  kBroadcast,
  kAllGather,
  kAllGatherText,
  kAllReduce,
  kReduceScatter,
  kCombine,
  kExchange,
};
/// "all_reduce"; a literal.
const char* name_of(Operation operation) noexcept;

/// Sent as it lies in memory.
struct Descriptor {
  std::int64_t sequence = 0;  ///< collectives of this channel so far, exchanges left out
  std::int64_t bytes = 0;     ///< of the operand; in an exchange, from the sender to the reader
  std::int64_t other = 0;  ///< root of a broadcast; in an exchange, from the reader to the sender
  Operation operation = Operation::kNone;
  DType dtype = DType::kF32;  ///< kF32 too where bytes have none
  std::uint32_t channel = 0;  ///< hash of the name
  char name[32] = {};         ///< of the channel, its end where it is longer; 0 behind it

  void set_channel(std::string_view channel_name) noexcept;
};
static_assert(sizeof(Descriptor) == 64);

/// Throws InternalError, naming the lowest two ranks that differ, both calls and their sizes.
/// `by_rank` holds what each rank described to rank `me`, itself included; kNone stands for a rank
/// that has no part in an exchange. `mine` of an exchange: what `me` described to each rank; of
/// anything else the same for all. `names[r]`: how rank r is called in the text.
void compare_descriptors(std::span<const Descriptor> by_rank, std::span<const Descriptor> mine,
                         int me, std::span<const int> names, std::string_view channel);

}  // namespace trireme
