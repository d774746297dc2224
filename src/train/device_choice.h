#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "comm/launch.h"
#include "config/run_config.h"
#include "device/device.h"
#include "kernels/attention/attention_backend.h"
#include "plan/resolve.h"

namespace trireme {

/// What `auto` comes to here: a GPU where this build and this machine have one. A wish is taken as
/// it is: `plan` answers for clusters from a machine without a GPU.
DeviceKind device_kind(DeviceChoice choice);

/// What a config asks for that the device it chooses does not do.
std::optional<Problem> device_fault(const RunConfig& config);

/// Throws EnvironmentError where this build has no backend of that name.
void require_device_built(DeviceChoice choice);

/// The device of this rank: of the GPUs that it sees the one of its local rank, from the first
/// again if fewer (a launcher may show each its own). Collective. Every rank throws
/// EnvironmentError where one has no GPU, types differ, or two ranks of a host have the same.
Device choose_device(DeviceChoice choice, const Launch& launch);

/// Makes a backend of attention ready, and returns it. Where a rank lacks its library, or that has
/// no such kernel: what serves otherwise on every rank, with a warning, else every rank throws
/// EnvironmentError. May take seconds, and select the thread's GPU. Collective.
const AttentionBackend& ready_attention(const Launch& launch, Device device,
                                        const AttentionBackend& backend,
                                        const AttentionLayout& layout, StagePurpose purpose);

/// Every rank throws EnvironmentError, with what to set, where the GPU of one has no products in
/// fp8 of that recipe, or of experts that the model has. May select the thread's GPU. Collective.
void require_fp8(const Launch& launch, Device device, const ModelConfig& model,
                 const Fp8Precision& precision);

/// TFLOP/s of one device for MFU: the config's, else the rate of a GPU that is known, of fp8
/// products where the run has those.
std::optional<double> peak_tflops(const RunConfig& config, Device device);

/// Bytes of the device in use: of a GPU by everybody, else the most that this process ever had.
std::int64_t memory_in_use(Device device);

/// "NVIDIA H200 (GPU 0)" or "CPU, AVX2".
std::string device_text(Device device);

}  // namespace trireme
