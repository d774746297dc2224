#pragma once
// Streams and events as lazy queues, and captures of streams into graphs.

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/simt_host/runtime.h"

namespace trireme::simt {

/// An operation of a capture, and the earlier ones it waits for.
struct GraphNode {
  std::function<bool()> run;  ///< false while it must wait (enqueue_outside)
  std::vector<size_t> after;
};

/// A capture under way: what the streams that take part were asked for.
struct Capture {
  std::vector<GraphNode> nodes;
  std::vector<CUstream_st*> streams;  // the first began it
  cudaStreamCaptureMode mode;
  bool valid = true, ended = false;
};

/// The value of the error, remembered for cudaGetLastError.
cudaError_t remember(cudaError_t);
/// Of a GPU, as a test wants it; a capability of 9.0 is 90.
size_t memory_bytes();
int capability();

/// The null stream's, too.
CUstream_st& queue_of(cudaStream_t);
const std::vector<CUstream_st*>& all_streams();
CUstream_st* make_stream();
void remove_stream(CUstream_st*);

/// Runs what finished() depends on.
void drive(CUstream_st* target, const std::function<bool()>& finished);
/// An operation that returns false while it must wait.
void enqueue_waiting(CUstream_st&, std::function<bool()>);

// Operations that other processes take part in: a stand-in for NCCL. On a GPU each is a kernel that
// spins, so cudaFree waits for it, and one that waits for what comes behind it waits for ever.
/// Also of a captured stream. Whoever returns false has called wait_outside before.
void enqueue_outside(cudaStream_t, std::function<bool()>);
/// `standing` says where all processes stand, for the case that none of them ever goes on.
void wait_outside(std::function<std::string()> standing);
/// A short pause. After TRIREME_SIMT_PATIENCE_SECONDS (300) without an end of any: a fault.
void pause_outside();
/// Waits for those that are in streams, as cudaFree does.
void finish_outside();

/// For what CUDA refuses during capture (synchronising, allocating): ends the captures and says so.
cudaError_t refuse_while_capturing();
bool is_capturing(CUstream_st&);

/// Runs the nodes in an order that their dependencies allow; Streams says in which.
void run_graph(const std::vector<GraphNode>& nodes);

}  // namespace trireme::simt

struct CUstream_st {
  std::deque<std::function<bool()>> queue;  // an operation returns false while it must wait
  std::shared_ptr<trireme::simt::Capture> capture;
  std::vector<size_t> last;  // nodes of the capture that the next one comes after
};
struct CUevent_st {
  uint64_t recorded = 0, done = 0;  // counts of cudaEventRecord enqueued, executed
  std::chrono::steady_clock::time_point when;
  std::shared_ptr<trireme::simt::Capture> capture;  // of the last record, if it was captured
  std::vector<size_t> nodes;
};
