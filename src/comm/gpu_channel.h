#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "comm/communicator.h"
#include "comm/flight_recorder.h"
#include "comm/transfer_faults.h"
#include "device/context.h"

namespace trireme {

/// The GPUs of some ranks, connected by NCCL once, however many channels they are divided into:
/// those share its threads, its memory and its connections.
///
/// A channel's transfers take memory of the context's GPU and what the context's stream has put
/// there so far; its Pending's wait makes that stream wait, not the caller. They run in a stream of
/// their own, of high priority. Sums come in NCCL's order, the same from run to run, where bf16 may
/// be rounded at every term. All that blocks goes by way of the group. All but exchanges can be
/// checked. A call of NCCL's puts a transfer into its stream and returns; calls that wait for other
/// ranks (connecting, ending) run beside, with a limit.
///
/// While the context's stream is captured, transfers become part of what is recorded: all channels'
/// in one order, in a stream of the context's, as kernels of several NCCL communicators could start
/// in any order and wait for each other for ever; but for exchanges that go one way, which stay in
/// their channel's. Each is waited for before the end.
class GpuChannels {
 public:
  virtual ~GpuChannels() = default;
  /// A channel of the ranks of `group`, which are among those that this was made for; `group` must
  /// outlive it. One that does nothing where `group` is this rank alone. Collective over all ranks
  /// that this was made for: each with its own group, of whatever size, in the same order.
  /// DeviceError on every rank where they cannot be connected.
  virtual std::unique_ptr<Communicator> channel(Communicator& group, std::string_view name) = 0;
};

/// For `ranks`. They are connected when a channel first needs it. Transfers stand in `recorder`
/// from their start until seen to be done, at the latest when the next starts; what NCCL finds out
/// meanwhile is told to who asks `faults`. All outlive this, and this the channels. `max_ctas`:
/// blocks of a transfer on a GPU at most, 0 as NCCL has it.
std::unique_ptr<GpuChannels> make_gpu_channels(Communicator& ranks, Context& context,
                                               FlightRecorder& recorder, TransferFaults& faults,
                                               int max_ctas = 0);

/// About what NCCL takes of a GPU's memory to connect it along so many axes of a mesh, whose
/// channels share their connections: for each of its blocks (as many as `max_ctas`, by itself at
/// most 24) the buffers of three protocols, 9.5 MiB by NCCL's documented default of NCCL_BUFFSIZE.
std::int64_t nccl_bytes(int axes, std::int64_t max_ctas);

}  // namespace trireme
