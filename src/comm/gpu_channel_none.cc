// A program without GPU code.

#include "comm/gpu_channel.h"

namespace trireme {

std::unique_ptr<GpuChannels> make_gpu_channels(Communicator&, Context&, FlightRecorder&,
                                               TransferFaults&, int) {
  throw InternalError("channels between GPUs in a program without GPU code");
}

}  // namespace trireme
