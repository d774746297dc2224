// Streams are queues whose operations run when something waits for them, and then only those that
// it depends on (Streams::kLazy): what a program forgot to order comes too late.

#include "kernels/simt_host/streams.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

namespace trireme::simt {

namespace {

// A program as a whole can be run with lazy streams: TRIREME_SIMT_STREAMS=lazy or random.
Streams streams_of_environment() {
  const char* setting = std::getenv("TRIREME_SIMT_STREAMS");
  if (setting == nullptr) return Streams::kEager;
  return std::strcmp(setting, "random") == 0 ? Streams::kRandom : Streams::kLazy;
}

struct State {
  Streams mode = streams_of_environment();
  std::mt19937_64 random;
  CUstream_st null_stream;
  std::vector<CUstream_st*> all{&null_stream};
  // Of operations that other processes take part in.
  int outside_queued = 0;
  bool waits_outside = false;
  std::function<std::string()> standing;
  std::chrono::steady_clock::time_point waiting_since = {};
};
State& state() {
  static State s;
  return s;
}

bool step(CUstream_st& s) {
  if (s.queue.empty()) return false;
  const auto operation = s.queue.front();
  // A faulty launch must not run again.
  struct Pop {
    CUstream_st& stream;
    bool done = true;
    ~Pop() {
      if (done) stream.queue.pop_front();
    }
  } pop{s};
  pop.done = operation();
  return pop.done;
}

/// Behind what the captured stream holds so far.
void add_node(CUstream_st& s, std::function<bool()> run) {
  s.capture->nodes.push_back({std::move(run), s.last});
  s.last = {s.capture->nodes.size() - 1};
}

}  // namespace

void set_streams(Streams mode, uint64_t seed) {
  state().mode = mode;
  state().random.seed(seed);
}

CUstream_st& queue_of(cudaStream_t s) { return s ? *s : state().null_stream; }
const std::vector<CUstream_st*>& all_streams() { return state().all; }
CUstream_st* make_stream() {
  state().all.push_back(new CUstream_st);
  return state().all.back();
}
void remove_stream(CUstream_st* s) {
  std::erase(state().all, s);
  delete s;
}

void drive(CUstream_st* target, const std::function<bool()>& finished) {
  State& g = state();
  while (!finished()) {
    if (g.mode == Streams::kRandom && g.random() % 2) {
      step(*g.all[g.random() % g.all.size()]);
      continue;
    }
    if (target && step(*target)) continue;
    bool moved = false;
    for (CUstream_st* s : g.all) moved = moved || (s != target && step(*s));
    if (!moved && std::exchange(g.waits_outside, false)) {
      pause_outside();
      continue;
    }
    if (!moved)
      throw Fault(FaultKind::kDeadlock, "streams wait for events that nobody will record");
  }
}

void enqueue_waiting(CUstream_st& s, std::function<bool()> operation) {
  s.queue.push_back(std::move(operation));
  if (state().mode != Streams::kEager) return;
  // What waits for another process goes on when something waits for it.
  State& g = state();
  g.waits_outside = false;
  while (step(s)) {
  }
  if (!std::exchange(g.waits_outside, false)) drive(&s, [&] { return s.queue.empty(); });
}

void enqueue(cudaStream_t stream, std::function<void()> f) {
  CUstream_st& s = queue_of(stream);
  auto operation = [f = std::move(f)] {
    f();
    return true;
  };
  if (is_capturing(s)) return add_node(s, operation);
  enqueue_waiting(s, operation);
}

void enqueue_outside(cudaStream_t stream, std::function<bool()> operation) {
  CUstream_st& s = queue_of(stream);
  if (is_capturing(s)) {
    return add_node(s, [operation = std::move(operation)] {
      if (!operation()) return false;
      state().waiting_since = {};
      return true;
    });
  }
  ++state().outside_queued;
  enqueue_waiting(s, [operation = std::move(operation)] {
    if (!operation()) return false;
    --state().outside_queued;
    state().waiting_since = {};
    return true;
  });
}

void wait_outside(std::function<std::string()> standing) {
  state().waits_outside = true;
  state().standing = std::move(standing);
}

void pause_outside() {
  const char* setting = std::getenv("TRIREME_SIMT_PATIENCE_SECONDS");
  const double patience_seconds = setting != nullptr ? std::atof(setting) : 300;
  State& g = state();
  const auto now = std::chrono::steady_clock::now();
  if (g.waiting_since == std::chrono::steady_clock::time_point()) g.waiting_since = now;
  if (std::chrono::duration<double>(now - g.waiting_since).count() > patience_seconds) {
    g.waiting_since = {};
    g.outside_queued = 0;  // nobody waits for them again
    throw Fault(FaultKind::kDeadlock,
                "a transfer waits for another process, which never comes to it:" +
                    (g.standing ? g.standing() : std::string()));
  }
  std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void finish_outside() {
  if (state().outside_queued == 0) return;
  for (CUstream_st* s : state().all) drive(s, [s] { return s->queue.empty(); });
}

bool is_capturing(CUstream_st& s) { return s.capture != nullptr; }

cudaError_t refuse_while_capturing() {
  bool any = false;
  for (CUstream_st* s : state().all)
    if (s->capture && s->capture->mode != cudaStreamCaptureModeRelaxed) {
      s->capture->valid = false;
      any = true;
    }
  return any ? remember(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

void run_graph(const std::vector<GraphNode>& nodes) {
  std::vector<size_t> missing(nodes.size());
  std::vector<std::vector<size_t>> followers(nodes.size());
  std::vector<size_t> ready;
  for (size_t i = 0; i < nodes.size(); ++i) {
    missing[i] = nodes[i].after.size();
    for (const size_t before : nodes[i].after) followers[before].push_back(i);
    if (missing[i] == 0) ready.push_back(i);
  }
  std::vector<size_t> waiting;  // for another process; others may go on meanwhile
  while (!ready.empty() || !waiting.empty()) {
    if (ready.empty()) {
      pause_outside();
      ready.swap(waiting);
    }
    // Eager: as captured. Lazy: as far from it as may be.
    std::sort(ready.begin(), ready.end(), std::greater<>());
    size_t pick = ready.size() - 1;
    if (state().mode == Streams::kLazy) pick = 0;
    if (state().mode == Streams::kRandom) pick = state().random() % ready.size();
    const size_t node = ready[pick];
    ready.erase(ready.begin() + std::ptrdiff_t(pick));
    if (!nodes[node].run()) {
      waiting.push_back(node);
      continue;
    }
    ready.insert(ready.end(), waiting.begin(), waiting.end());
    waiting.clear();
    for (const size_t next : followers[node])
      if (--missing[next] == 0) ready.push_back(next);
  }
}

}  // namespace trireme::simt
