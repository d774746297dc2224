// A program without GPU code.

#include "comm/gpu_channel.h"

namespace trireme {

std::unique_ptr<Communicator> make_gpu_channel(Communicator&, std::string_view, Context&,
                                               FlightRecorder&) {
  throw InternalError("a channel between GPUs in a program without GPU code");
}

}  // namespace trireme
