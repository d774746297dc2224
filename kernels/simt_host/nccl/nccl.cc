// What stands for libnccl.so.2 where GPUs are executed on the host. Ranks are processes of one
// machine. A transfer is an operation of its stream and waits there, as NCCL's kernel spins, until
// the other ranks have come to theirs; sums are made in rank order and rounded once. A GPU has room
// for one transfer at a time, in the order in which they were asked for, whatever their
// communicators and streams: two ranks with two orders wait for each other for ever, as they did on
// a GPU (tests/bench/results). By NVIDIA's header; nothing of NCCL is linked.
//
// For tests: TRIREME_NCCL_FAILS=init:RANK, a communicator that this rank of it cannot make;
// async:RANK:N, one that fails at its N-th transfer there; blocks:RANK:N, all that are not limited
// to N blocks.

#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "kernels/simt_host/nccl/mailboxes.h"
#include "kernels/simt_host/nccl/sums.h"
#include "kernels/simt_host/nccl/windows.h"
#include "kernels/simt_host/streams.h"

using trireme::simt::Fault;
using trireme::simt::FaultKind;
using trireme::simt::Mailboxes;
using trireme::simt::sum;
using trireme::simt::Window;

struct ncclComm {
  std::string name;  // equal on all ranks
  int rank = 0, ranks = 0;
  std::unique_ptr<Mailboxes> mailboxes;
  std::vector<std::uint64_t> sent, received;  // messages so far, to and from each rank
  std::uint64_t operations = 0, splits = 0, registered = 0;
  const void* running = nullptr;  // the operation whose turn it is
  std::atomic<int> error{ncclSuccess};
  std::atomic<bool> aborted{false};
  std::atomic<int> open{0};  // operations in streams and recorded ones
  std::vector<Window*> windows;
  std::mutex mutex;  // guards text
  std::string text;

  void fail(ncclResult_t result, const std::string& why) {
    const std::lock_guard lock(mutex);
    if (error.exchange(result) == ncclSuccess) text = why;
  }
};

namespace {

/// What a rank of a test is to meet: "init:1", "async:0:20".
struct Planned {
  std::string what;
  int rank = -1;
  std::uint64_t at = 0;
};
const Planned& planned() {
  static const Planned plan = [] {
    Planned of;
    const char* setting = std::getenv("TRIREME_NCCL_FAILS");
    if (setting == nullptr) return of;
    const std::string text = setting;
    of.what = text.substr(0, text.find(':'));
    std::sscanf(text.c_str() + of.what.size(), ":%d:%lu", &of.rank, &of.at);
    return of;
  }();
  return plan;
}

thread_local std::string t_last_error;

ncclResult_t refuse(ncclResult_t result, std::string text) {
  t_last_error = std::move(text);
  return result;
}

/// Memory of ncclMemAlloc, by its begin.
std::map<const void*, std::size_t>& own_memory() {
  static std::map<const void*, std::size_t> memory;
  return memory;
}

struct Part {
  int peer;
  char* data;
  std::size_t bytes, done = 0;
};

/// What a rank says to others, and they to it.
struct Messages {
  std::vector<Part> sends, receives;
};

class Transfer;
/// Transfers of this process that are not done, in the order in which they were asked for.
std::list<Transfer*>& line() {
  static std::list<Transfer*> waiting;
  return waiting;
}

/// One transfer of one communicator; a recorded one runs anew at each replay.
class Transfer {
 public:
  /// `place`: of the operand that other ranks would read or write.
  Transfer(ncclComm* comm, std::string what, Messages messages, std::function<void()> finish,
           std::uint64_t place = 0)
      : comm_(comm),
        place_(place),
        what_(std::move(what)),
        sends_(std::move(messages.sends)),
        receives_(std::move(messages.receives)),
        finish_(std::move(finish)) {
    ++comm_->open;
  }
  ~Transfer() {
    line().remove(this);
    --comm_->open;
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  void stand_in_line() { line().push_back(this); }
  /// False while another rank is waited for.
  bool progress() {
    if (comm_->aborted) return leave_line();
    while (!line().empty() && line().front()->comm_->aborted) line().pop_front();
    const bool in_line = std::find(line().begin(), line().end(), this) != line().end();
    if (in_line && line().front() != this) return waits();
    if (comm_->running != this) {
      if (comm_->running != nullptr) return waits();
      begin();
    }
    if (comm_->error != ncclSuccess) return waits();  // as a kernel that spins until it is aborted
    bool done = true;
    std::vector<bool> busy(static_cast<std::size_t>(comm_->ranks));
    for (Part& part : sends_) done = move(part, busy, &Transfer::send) && done;
    busy.assign(busy.size(), false);
    for (Part& part : receives_) done = move(part, busy, &Transfer::receive) && done;
    if (!done) {
      if (++idle_ % 1000 == 0) look_for_the_dead();
      return waits();
    }
    finish_();
    comm_->mailboxes->stand("");
    comm_->running = nullptr;
    return leave_line();
  }

 private:
  bool leave_line() {
    line().remove(this);
    return true;
  }
  void begin() {
    comm_->running = this;
    ++comm_->operations;
    for (Part& part : sends_) part.done = 0;
    for (Part& part : receives_) part.done = 0;
    const std::string where =
        what_ + ", transfer " + std::to_string(comm_->operations) + " of " + comm_->name;
    comm_->mailboxes->stand(where);
    if (planned().what == "async" && planned().rank == comm_->rank &&
        planned().at == comm_->operations)
      comm_->fail(ncclRemoteError, "a planned failure in " + where);
  }
  bool waits() {
    trireme::simt::wait_outside([comm = comm_] { return comm->mailboxes->standing(); });
    return false;
  }
  void look_for_the_dead() {
    const int dead = comm_->mailboxes->dead_rank();
    if (dead >= 0)
      comm_->fail(ncclRemoteError, "rank " + std::to_string(dead) + " of " + comm_->name +
                                       " is gone, the connection to it is closed");
  }
  using Step = bool (Transfer::*)(Part&);
  /// Messages between two ranks go one after another.
  bool move(Part& part, std::vector<bool>& busy, Step step) {
    if (busy[static_cast<std::size_t>(part.peer)]) return false;
    if ((this->*step)(part)) return true;
    busy[static_cast<std::size_t>(part.peer)] = true;
    return false;
  }
  bool send(Part& part) {
    Mailboxes::Box& box = comm_->mailboxes->box(comm_->rank, part.peer);
    if (box.posted.load() != box.taken.load()) return false;
    if (part.done == part.bytes) return true;
    const std::size_t bytes = std::min(part.bytes - part.done, Mailboxes::kPieceBytes);
    box.bytes = part.bytes;
    box.place = place_;
    std::memcpy(box.piece.data(), part.data + part.done, bytes);
    part.done += bytes;
    box.posted.fetch_add(1);
    return false;
  }
  bool receive(Part& part) {
    if (part.done == part.bytes) return true;
    Mailboxes::Box& box = comm_->mailboxes->box(part.peer, comm_->rank);
    if (box.posted.load() == box.taken.load()) return false;
    if (box.bytes != part.bytes)
      throw Fault(FaultKind::kStream,
                  "NCCL: rank " + std::to_string(comm_->rank) + " of " + comm_->name + " is in " +
                      what_ + " and expects " + std::to_string(part.bytes) + " bytes of rank " +
                      std::to_string(part.peer) + ", which sends " + std::to_string(box.bytes));
    if (box.place != place_)
      throw Fault(FaultKind::kStream,
                  "NCCL: rank " + std::to_string(comm_->rank) + " of " + comm_->name + " is in " +
                      what_ + " " + trireme::simt::text_of_place(place_) + ", rank " +
                      std::to_string(part.peer) + " " + trireme::simt::text_of_place(box.place));
    const std::size_t bytes = std::min(part.bytes - part.done, Mailboxes::kPieceBytes);
    std::memcpy(part.data + part.done, box.piece.data(), bytes);
    part.done += bytes;
    box.taken.fetch_add(1);
    return part.done == part.bytes;
  }

  ncclComm* const comm_;
  const std::uint64_t place_;
  const std::string what_;
  std::vector<Part> sends_, receives_;
  const std::function<void()> finish_;
  std::uint64_t idle_ = 0;
};

void check(const void* memory, std::size_t bytes, const char* what) {
  if (bytes > 0) trireme::simt::device_check_range(memory, bytes, what);
}

void start(ncclComm* comm, cudaStream_t stream, std::string what, Messages messages,
           std::function<void()> finish, std::uint64_t place = 0) {
  const auto transfer = std::make_shared<Transfer>(comm, std::move(what), std::move(messages),
                                                   std::move(finish), place);
  cudaStreamCaptureStatus recorded = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(stream, &recorded);
  // Those of a graph have their order there.
  if (recorded == cudaStreamCaptureStatusNone) transfer->stand_in_line();
  trireme::simt::enqueue_outside(stream, [transfer] { return transfer->progress(); });
}

// ---- groups: what they hold starts together ----

struct Member {
  ncclComm* comm;
  cudaStream_t stream;
  std::vector<Part> sends, receives;
};
thread_local int t_depth = 0;
thread_local std::vector<Member> t_members;

Member& member_of(ncclComm* comm, cudaStream_t stream) {
  for (Member& member : t_members)
    if (member.comm == comm && member.stream == stream) return member;
  return t_members.emplace_back(Member{comm, stream, {}, {}});
}

void end_group() {
  for (Member& member : std::exchange(t_members, {})) {
    const auto parts = [&](const std::vector<Part>& list) {
      std::string text;
      for (const Part& part : list)
        text += " " + std::to_string(part.bytes) + " bytes " + std::to_string(part.peer);
      return text;
    };
    const std::string what =
        "an exchange (to:" + parts(member.sends) + "; from:" + parts(member.receives) + ")";
    const std::vector<Part> sends = member.sends, receives = member.receives;
    start(member.comm, member.stream, what, {sends, receives}, [sends, receives] {
      for (const Part& part : sends) check(part.data, part.bytes, "NCCL's send");
      for (const Part& part : receives) {
        check(part.data, part.bytes, "NCCL's receive");
        trireme::simt::device_mark_initialised(part.data, part.bytes);
      }
    });
  }
}

// ---- sums ----

std::size_t size_of(ncclDataType_t type) {
  return type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1;
}
bool is_summable(ncclDataType_t type, ncclRedOp_t op) {
  return op == ncclSum && (type == ncclFloat32 || type == ncclBfloat16);
}

/// Every rank gives each other `count` elements from `given(peer)` on, and writes the sum of what
/// it has itself and what it gets.
struct Sum {
  std::string what;
  void* to;
  std::size_t count;
  ncclDataType_t type;
  std::function<char*(int)> given;
};
void start_sum(ncclComm* comm, cudaStream_t stream, const Sum& of) {
  const std::size_t bytes = of.count * size_of(of.type);
  auto others = std::make_shared<std::vector<char>>(bytes * static_cast<std::size_t>(comm->ranks));
  std::vector<Part> sends, receives;
  std::vector<const char*> of_ranks;
  for (int rank = 0; rank < comm->ranks; ++rank) {
    char* theirs = others->data() + bytes * static_cast<std::size_t>(rank);
    of_ranks.push_back(rank == comm->rank ? of.given(rank) : theirs);
    if (rank == comm->rank) continue;
    sends.push_back({rank, of.given(rank), bytes});
    receives.push_back({rank, theirs, bytes});
  }
  start(
      comm, stream, of.what, {std::move(sends), std::move(receives)},
      [comm, of, bytes, of_ranks, others] {
        for (int rank = 0; rank < comm->ranks; ++rank)
          check(of.given(rank), bytes, "the source of a sum");
        check(of.to, bytes, "the target of a sum");
        std::vector<char> result(bytes);
        sum(result.data(), of_ranks, of.count,
            of.type == ncclFloat32 ? trireme::DType::kF32 : trireme::DType::kBF16);
        std::memcpy(of.to, result.data(), bytes);
        trireme::simt::device_mark_initialised(of.to, bytes);
      },
      trireme::simt::place_of(comm->windows, of.given(0)));
}

/// What every rank says to every other, by rank; none where the communicator fails meanwhile.
template <class T>
std::vector<T> told(ncclComm* comm, T mine, const char* what) {
  std::vector<T> all(static_cast<std::size_t>(comm->ranks), mine);
  std::vector<Part> sends, receives;
  for (int rank = 0; rank < comm->ranks; ++rank) {
    if (rank == comm->rank) continue;
    char* theirs = reinterpret_cast<char*>(&all[static_cast<std::size_t>(rank)]);
    sends.push_back({rank, reinterpret_cast<char*>(&mine), sizeof mine});
    receives.push_back({rank, theirs, sizeof mine});
  }
  Transfer exchange(comm, what, {sends, receives}, [] {});
  while (!exchange.progress()) {
    if (comm->error != ncclSuccess) return {};
    ::usleep(50);
  }
  return all;
}

/// Communicators of this process that are not ended.
std::list<ncclComm*>& communicators() {
  static std::list<ncclComm*> open;
  return open;
}
bool registered(const void* memory) {
  const auto in = [memory](const ncclComm* comm) {
    return std::any_of(comm->windows.begin(), comm->windows.end(),
                       [&](const Window* window) { return window->begin == memory; });
  };
  return std::any_of(communicators().begin(), communicators().end(), in);
}

ncclResult_t connect(ncclComm_t* made, const std::string& name, int ranks, int rank,
                     const ncclConfig_t* config) {
  if (config->blocking == 0)
    return refuse(ncclInvalidArgument, "calls here return when they are done");
  const auto blocks = static_cast<std::uint64_t>(config->maxCTAs);
  if (planned().what == "blocks" && planned().rank == rank && planned().at != blocks)
    return refuse(ncclInvalidArgument, std::to_string(config->maxCTAs) + " blocks");
  if (ranks > trireme::simt::kRanksMax)
    return refuse(ncclInvalidArgument, "more ranks than host execution serves");
  if (planned().what == "init" && planned().rank == rank)
    return refuse(ncclSystemError, "a planned failure of rank " + std::to_string(rank));
  auto comm = std::make_unique<ncclComm>();
  comm->name = name;
  comm->rank = rank;
  comm->ranks = ranks;
  try {
    comm->mailboxes = std::make_unique<Mailboxes>("/" + name, rank, ranks);
  } catch (const std::exception& error) {
    return refuse(ncclSystemError, error.what());
  }
  *made = comm.release();
  communicators().push_back(*made);
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  std::snprintf(id->internal, sizeof id->internal, "trireme-nccl-%08x%08x", random(), random());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  *comm = nullptr;
  return connect(comm, id.internal, ranks, rank, config);
}

/// Ranks learn each other's colors.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config) {
  *made = nullptr;
  struct Choice {
    int color, key;
  };
  const std::vector<Choice> choices = told(comm, Choice{color, key}, "ncclCommSplit");
  if (choices.empty()) return refuse(static_cast<ncclResult_t>(comm->error.load()), comm->text);
  const std::string name =
      comm->name + "." + std::to_string(++comm->splits) + "." + std::to_string(color);
  if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  int rank = 0, ranks = 0;
  for (int other = 0; other < comm->ranks; ++other) {
    const Choice& theirs = choices[static_cast<std::size_t>(other)];
    if (theirs.color != color) continue;
    ++ranks;
    rank += theirs.key < key || (theirs.key == key && other < comm->rank) ? 1 : 0;
  }
  return connect(made, name, ranks, rank, config);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = static_cast<ncclResult_t>(comm->error.load());
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInvalidArgument:
      return "invalid argument";
    default:
      return "host execution";
  }
}

const char* ncclGetLastError(ncclComm_t comm) {
  if (comm != nullptr) {
    const std::lock_guard lock(comm->mutex);
    if (!comm->text.empty()) t_last_error = comm->text;
  }
  return t_last_error.c_str();
}

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }

/// What streams and graphs still hold of it is over, and does nothing when it is come to.
static ncclResult_t end(ncclComm_t comm) {
  communicators().remove(comm);
  comm->aborted = true;
  comm->mailboxes->leave();
  if (comm->open == 0) delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return end(comm); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return end(comm); }

ncclResult_t ncclGroupStart() {
  ++t_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--t_depth == 0) end_group();
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  auto* data = static_cast<char*>(const_cast<void*>(from));
  member_of(comm, stream).sends.push_back({peer, data, count * size_of(type)});
  if (t_depth == 0) end_group();
  return ncclSuccess;
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  member_of(comm, stream).receives.push_back({peer, static_cast<char*>(to), count * size_of(type)});
  if (t_depth == 0) end_group();
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  if (!is_summable(type, op)) return refuse(ncclInvalidArgument, "a sum that nobody makes");
  auto* data = static_cast<char*>(const_cast<void*>(from));
  start_sum(comm, stream,
            {"an all-reduce of " + std::to_string(count) + " elements", to, count, type,
             [data](int) { return data; }});
  return ncclSuccess;
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  if (!is_summable(type, op)) return refuse(ncclInvalidArgument, "a sum that nobody makes");
  auto* data = static_cast<char*>(const_cast<void*>(from));
  const std::size_t bytes = count * size_of(type);
  start_sum(comm, stream,
            {"a reduce-scatter of " + std::to_string(count) + " elements a rank", to, count, type,
             [data, bytes](int rank) { return data + bytes * static_cast<std::size_t>(rank); }});
  return ncclSuccess;
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  auto* data = static_cast<char*>(const_cast<void*>(from));
  auto* all = static_cast<char*>(to);
  std::vector<Part> sends, receives;
  for (int rank = 0; rank < comm->ranks; ++rank) {
    if (rank == comm->rank) continue;
    sends.push_back({rank, data, bytes});
    receives.push_back({rank, all + bytes * static_cast<std::size_t>(rank), bytes});
  }
  start(
      comm, stream, "an all-gather of " + std::to_string(bytes) + " bytes a rank",
      {sends, receives},
      [=] {
        const std::size_t all_bytes = bytes * static_cast<std::size_t>(comm->ranks);
        check(data, bytes, "the source of an all-gather");
        check(all, all_bytes, "the target of an all-gather");
        std::memmove(all + bytes * static_cast<std::size_t>(comm->rank), data, bytes);
        for (const Part& part : receives)
          trireme::simt::device_mark_initialised(part.data, part.bytes);
      },
      trireme::simt::place_of(comm->windows, all));
  return ncclSuccess;
}

// ---- registered memory ----

ncclResult_t ncclMemAlloc(void** memory, size_t size) {
  if (cudaMalloc(memory, size) != cudaSuccess)
    return refuse(ncclUnhandledCudaError, "no memory of this size");
  own_memory()[*memory] = size;
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* memory) {
  if (registered(memory))
    throw Fault(FaultKind::kStream, "NCCL: memory is freed that is registered still");
  own_memory().erase(memory);
  return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

/// Ranks learn each other's sizes and offsets.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, size_t size, ncclWindow_t* made,
                                    int flags) {
  *made = nullptr;
  struct Claim {
    std::uint64_t size, offset, refused;
  };
  const auto* at = static_cast<const char*>(memory);
  auto owner = own_memory().upper_bound(memory);
  const bool own = owner != own_memory().begin() &&
                   at + size <= static_cast<const char*>((--owner)->first) + owner->second;
  const bool fails = planned().what == "window" && planned().rank == comm->rank;
  Claim mine{size,
             own ? static_cast<std::uint64_t>(at - static_cast<const char*>(owner->first)) : 0,
             !own || fails || flags != NCCL_WIN_COLL_SYMMETRIC ? 1U : 0U};
  const std::vector<Claim> claims = told(comm, mine, "ncclCommWindowRegister");
  if (claims.empty()) return refuse(static_cast<ncclResult_t>(comm->error.load()), comm->text);
  for (std::size_t rank = 0; rank < claims.size(); ++rank) {
    if (claims[rank].refused != 0)
      return refuse(ncclInvalidArgument, "memory of rank " + std::to_string(rank) +
                                             (fails ? ": a planned failure" : " is not NCCL's"));
    if (claims[rank].size != size || claims[rank].offset != mine.offset)
      return refuse(ncclInvalidArgument, "ranks register memory of other sizes or offsets");
  }
  comm->windows.push_back(new Window{at, size, ++comm->registered});
  *made = reinterpret_cast<ncclWindow_t>(comm->windows.back());
  return ncclSuccess;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  auto* const own = reinterpret_cast<Window*>(window);
  if (std::erase(comm->windows, own) == 0)
    return refuse(ncclInvalidArgument, "no window of this communicator");
  delete own;
  return ncclSuccess;
}

}  // extern "C"
