// Captures of streams, and graphs made of them. What CUDA refuses while it captures is refused
// here: synchronising, allocating, copies of pageable memory, and ends that leave a stream behind.

#include <algorithm>

#include "kernels/simt_host/streams.h"

struct CUgraph_st {
  std::vector<trireme::simt::GraphNode> nodes;
};
struct CUgraphExec_st {
  std::shared_ptr<const std::vector<trireme::simt::GraphNode>> nodes;
};

namespace trireme::simt {
namespace {

/// Whether every node of `late` is in `of` or comes before one of it.
bool comes_before(const Capture& capture, const std::vector<size_t>& late,
                  const std::vector<size_t>& of) {
  std::vector<bool> seen(capture.nodes.size(), false);
  std::vector<size_t> open = of;
  while (!open.empty()) {
    const size_t node = open.back();
    open.pop_back();
    if (seen[node]) continue;
    seen[node] = true;
    open.insert(open.end(), capture.nodes[node].after.begin(), capture.nodes[node].after.end());
  }
  return std::all_of(late.begin(), late.end(), [&](size_t node) { return seen[node]; });
}

}  // namespace
}  // namespace trireme::simt

using namespace trireme::simt;  // NOLINT: the functions of CUDA stand outside

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (!stream) return remember(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) return remember(cudaErrorIllegalState);
  stream->capture = std::make_shared<Capture>();
  stream->capture->mode = mode;
  stream->capture->streams = {stream};
  stream->last.clear();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (!stream || !stream->capture) return remember(cudaErrorIllegalState);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture->streams.front() != stream) return remember(cudaErrorStreamCaptureUnmatched);
  bool joined = true;
  for (CUstream_st* s : capture->streams) {
    joined = joined && comes_before(*capture, s->last, stream->last);
  }
  for (CUstream_st* s : capture->streams) {
    s->capture = nullptr;
    if (s != stream) s->last.clear();
  }
  stream->last.clear();
  capture->ended = true;
  if (!capture->valid) return remember(cudaErrorStreamCaptureInvalidated);
  if (!joined) return remember(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{std::move(capture->nodes)};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  CUstream_st& s = queue_of(stream);
  *status = !s.capture         ? cudaStreamCaptureStatusNone
            : s.capture->valid ? cudaStreamCaptureStatusActive
                               : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes) return remember(cudaErrorNotSupported);
  *count = graph->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{std::make_shared<std::vector<GraphNode>>(graph->nodes)};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  enqueue(stream, [nodes = exec->nodes] { run_graph(*nodes); });
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return delete exec, cudaSuccess; }

}  // extern "C"
