#pragma once

#include <memory>
#include <string_view>

#include "comm/communicator.h"
#include "comm/flight_recorder.h"
#include "device/context.h"

namespace trireme {

/// The same ranks, with transfers of GPU memory: what starts takes memory of the context's GPU and
/// what the context's stream has put there so far; its Pending's wait makes that stream wait, not
/// the caller. All else goes by way of `group`, which must outlive it. Collective.
///
/// By NCCL in a program with CUDA: transfers in a stream of their own; sums in NCCL's order, the
/// same from run to run, where bf16 may be rounded at every term. By the group itself where GPUs
/// are executed on the host: rank order. All but exchanges can be checked.
///
/// While the context's stream is captured, transfers become part of what is recorded: all channels'
/// in one order, in a stream of the context's, as kernels of several NCCL communicators could start
/// in any order and wait for each other for ever. Each is waited for before the end.
///
/// Other transfers stand in `recorder` from their start until seen to be done, at the latest when
/// the next starts. Throws EnvironmentError on every rank where NCCL cannot connect them.
std::unique_ptr<Communicator> make_gpu_channel(Communicator& group, std::string_view name,
                                               Context& context, FlightRecorder& recorder);

}  // namespace trireme
