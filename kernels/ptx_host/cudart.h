#pragma once
// What cudart's sources here share. Everything happens at its call, in order; a stream that is
// captured keeps its work instead.
#include <cuda_runtime_api.h>

#include <functional>
#include <string>

namespace trireme::ptx {

/// Runs now, or is kept by the capture of the stream. What throws becomes the error of the next
/// calls.
cudaError_t perform(cudaStream_t stream, std::function<void()> work);
/// cudaSuccess, or what a kernel has broken: as on a GPU, it stays.
cudaError_t sticky_error();
cudaError_t fail(cudaError_t error);

}  // namespace trireme::ptx
