// NCCL, found when the program runs: one that trains on a single GPU needs none.

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/log.h"
#include "base/signal_free_thread.h"
#include "comm/collective_check.h"
#include "comm/forwarding_communicator.h"
#include "comm/gpu_channel.h"
#include "device/gpu.h"

namespace trireme {

namespace {

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 0)
using ncclWindow_t = struct ncclWindow*;
inline constexpr int NCCL_WIN_COLL_SYMMETRIC = 1;
#endif

/// What is used of its interface.
struct NcclLibrary {
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&ncclCommSplit) split = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;

  // Of newer ones; null where this has none.
  ncclResult_t (*memory_allocate)(void**, std::size_t) = nullptr;
  ncclResult_t (*memory_free)(void*) = nullptr;
  ncclResult_t (*window_register)(ncclComm_t, void*, std::size_t, ncclWindow_t*, int) = nullptr;
  ncclResult_t (*window_deregister)(ncclComm_t, ncclWindow_t) = nullptr;
};

/// A setting of NCCL's that stands above what the program asks for, and under which its calls would
/// answer before they are done.
void refuse_settings() {
  const char* blocking = std::getenv("NCCL_COMM_BLOCKING");
  if (blocking != nullptr && std::string_view(blocking) == "0")
    throw EnvironmentError(
        "NCCL_COMM_BLOCKING=0 is set: NCCL would make a thread for each transfer (2.27 and newer), "
        "and the program waits for what a call has put into its stream. Unset it");
}

NcclLibrary open_library() {
  // From 2.26 on: kernels of different communicators start in the order in which they were asked
  // for, which is the same on all ranks.
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  void* handle = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw EnvironmentError(
        "NCCL cannot be loaded: {} (several GPUs sum gradients by it). Install libnccl2, or set "
        "LD_LIBRARY_PATH to the folder of libnccl.so.2",
        ::dlerror());
  }
  NcclLibrary library;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
  };
  const auto take = [&](const char* name, auto& function) {
    find(name, function);
    if (function == nullptr) {
      throw EnvironmentError(
          "this NCCL is too old: it has no {} (the program was built with NCCL {}.{}.{}). Install "
          "a newer libnccl2",
          name, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
    }
  };
  take("ncclGetUniqueId", library.get_unique_id);
  take("ncclCommInitRankConfig", library.init_rank);
  take("ncclCommSplit", library.split);
  take("ncclCommGetAsyncError", library.async_error);
  take("ncclGetErrorString", library.error_string);
  take("ncclGetLastError", library.last_error);
  take("ncclCommFinalize", library.finalize);
  take("ncclCommDestroy", library.destroy);
  take("ncclCommAbort", library.abort);
  take("ncclAllReduce", library.all_reduce);
  take("ncclReduceScatter", library.reduce_scatter);
  take("ncclAllGather", library.all_gather);
  take("ncclGroupStart", library.group_start);
  take("ncclGroupEnd", library.group_end);
  take("ncclSend", library.send);
  take("ncclRecv", library.receive);
  find("ncclMemAlloc", library.memory_allocate);
  find("ncclMemFree", library.memory_free);
  find("ncclCommWindowRegister", library.window_register);
  find("ncclCommWindowDeregister", library.window_deregister);
  return library;
}

/// Opened by the first call. EnvironmentError: it is not there, too old, or set so that the program
/// cannot use it.
const NcclLibrary& nccl() {
  static const NcclLibrary library = [] {
    refuse_settings();
    return open_library();
  }();
  return library;
}

/// `text`: NCCL's of what happened.
[[noreturn]] void fail(ncclResult_t result, std::string_view text, std::string_view what) {
  throw DeviceError(
      "NCCL: {}: {} ({}). NCCL_DEBUG=INFO tells more; NCCL_SOCKET_IFNAME and NCCL_IB_HCA choose "
      "the network",
      what, nccl().error_string(result), text);
}

// ---- calls that wait for other ranks ----

/// Ranks connect when they are in the same place of the program; the slowest has loaded by then.
constexpr std::chrono::minutes kConnectMax{10};
/// To end what is connected: others have come as far, or never will.
constexpr std::chrono::seconds kEndMax{20};

/// A call under way in a thread of its own, which holds this for as long as it needs.
struct Call {
  std::mutex mutex;
  std::condition_variable done_changed;
  bool done = false;
  ncclResult_t result = ncclSuccess;
  ncclComm_t comm = nullptr;
  std::string text;  ///< NCCL's, where it failed

  /// Whether it is done by then.
  bool wait(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex);
    return done_changed.wait_for(lock, limit, [&] { return done; });
  }
};

/// `call(comm)` on the GPU of that index. What is not done in time is left behind.
template <class F>
std::shared_ptr<Call> beside(int gpu, F call) {
  auto state = std::make_shared<Call>();
  signal_free_thread([state, gpu, call = std::move(call)] {
    ncclComm_t comm = nullptr;
    ncclResult_t result = ncclSystemError;
    std::string text = "the GPU cannot be selected";
    try {
      gpu::select(gpu);
      result = call(comm);
      text = result == ncclSuccess ? "" : nccl().last_error(comm);
    } catch (const std::exception& error) {
      text = error.what();
    }
    const std::lock_guard lock(state->mutex);
    state->result = result;
    state->comm = comm;
    state->text = text;
    state->done = true;
    state->done_changed.notify_all();
  }).detach();
  return state;
}

/// How a call ended that all ranks of `ranks` make: where one fails the others, who would wait for
/// it in theirs, learn of it here. Collective.
struct Meeting {
  std::shared_ptr<Call> mine;
  bool done = false;   ///< on every rank
  bool ended = false;  ///< on this one
  bool late = false;   ///< it has had its time
  [[nodiscard]] bool failed() const { return ended && mine->result != ncclSuccess; }
};
Meeting meet(Communicator& ranks, std::shared_ptr<Call> mine) {
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::milliseconds pause{1};
  while (true) {
    const bool done = mine->wait(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(50));
    const bool late = !done && std::chrono::steady_clock::now() - begin > kConnectMax;
    const bool failed = late || (done && mine->result != ncclSuccess);
    std::array<std::int64_t, 2> any{done ? 0 : 1, failed ? 1 : 0};
    ranks.maximum(any);
    const auto [open, broken] = any;
    if (broken != 0 || open == 0) return {std::move(mine), broken == 0, done, late};
  }
}

/// What `call` has made, on every rank, or an error on every rank. Collective over `ranks`.
template <class F>
ncclComm_t connected(Communicator& ranks, int gpu, const std::string& what, F call) {
  const Meeting meeting = meet(ranks, beside(gpu, std::move(call)));
  if (meeting.done) return meeting.mine->comm;
  run_together(ranks, [&] {
    if (meeting.late) {
      throw DeviceError(
          "NCCL: {}: not done after {} minutes (the network between hosts may be closed). "
          "NCCL_DEBUG=INFO tells more; NCCL_SOCKET_IFNAME chooses the network",
          what, kConnectMax.count());
    }
    if (meeting.failed()) fail(meeting.mine->result, meeting.mine->text, what);
  });
  throw InternalError("a connection that no rank failed to make");
}

/// What NCCL has found out about a communicator behind our calls, in its words; "" for nothing.
std::string fault_of(ncclComm_t comm) {
  ncclResult_t result = ncclSuccess;
  nccl().async_error(comm, &result);
  if (result == ncclSuccess || result == ncclInProgress) return "";
  return fmt::format("{} ({})", nccl().error_string(result), nccl().last_error(comm));
}

/// A communicator, and who is told of its faults.
class Connection {
 public:
  Connection(ncclComm_t comm, std::string name, int gpu, TransferFaults& faults)
      : comm_(comm), gpu_(gpu) {
    watched_.emplace(faults, [comm, name = std::move(name)] {
      const std::string fault = fault_of(comm);
      return fault.empty() ? fault : fmt::format("NCCL: a transfer on {}: {}", name, fault);
    });
  }
  ~Connection() {
    if (comm_ == nullptr) return;
    if (std::uncaught_exceptions() > 0) {
      abort();  // others may never come to do their part
      return;
    }
    watched_.reset();
    beside(gpu_, [comm = comm_](ncclComm_t&) {
      nccl().finalize(comm);
      return nccl().destroy(comm);
    })->wait(kEndMax);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  [[nodiscard]] ncclComm_t get() const { return comm_; }
  /// A rank that died shows here, and no kernel then waits for it for ever.
  void check(std::string_view what) {
    const std::string fault = fault_of(comm_);
    if (fault.empty()) return;
    abort();
    throw DeviceError("NCCL: {}: {}. NCCL_DEBUG=INFO tells more", what, fault);
  }

 private:
  void abort() {
    watched_.reset();
    beside(gpu_, [comm = std::exchange(comm_, nullptr)](ncclComm_t&) {
      return nccl().abort(comm);
    })->wait(kEndMax);
  }

  ncclComm_t comm_;
  int gpu_;
  std::optional<TransferFaults::Watched> watched_;
};

class NcclChannel final : public ForwardingCommunicator {
 public:
  NcclChannel(Communicator& group, std::string_view name, ncclComm_t comm, Context& context,
              FlightRecorder& recorder, TransferFaults& faults)
      : ForwardingCommunicator(group.channel(name)),
        name_(name),
        context_(context),
        recorder_(recorder),
        stream_(gpu::make_stream(gpu::Priority::kHigh)),
        connection_(comm, name_, context.device().index, faults) {}

  std::unique_ptr<Communicator> channel(std::string_view name) override {
    return inner().channel(name);
  }
  [[nodiscard]] bool starts_in_one_order() const override { return true; }
  /// Of transfers as asked for; a recorded one counts once, however often replayed.
  [[nodiscard]] TrafficCounters counters() const override { return counters_; }

  Memory transfer_memory(Device device, std::size_t bytes) override {
    void* memory = nullptr;
    if (bytes == 0 || !registers_memory()) return {device, bytes};
    gpu::select(device.index);
    if (nccl().memory_allocate(&memory, bytes) != ncclSuccess) return {device, bytes};
    const std::shared_ptr<std::byte> owner(static_cast<std::byte*>(memory), [](std::byte* at) {
      if (std::uncaught_exceptions() == 0) nccl().memory_free(at);
    });
    gpu::clear(memory, bytes, nullptr);
    gpu::synchronize(nullptr);
    return {owner, bytes};
  }
  std::shared_ptr<void> register_memory(std::span<std::byte> memory) override {
    if (memory.empty() || !registers_memory()) return {};
    const auto window = std::make_shared<ncclWindow_t>(nullptr);
    const Meeting meeting =
        meet(inner(), beside(gpu(), [comm = connection_.get(), memory, window](ncclComm_t&) {
               return nccl().window_register(comm, memory.data(), memory.size(), window.get(),
                                             NCCL_WIN_COLL_SYMMETRIC);
             }));
    if (!meeting.done) say_unregistered(*meeting.mine);
    if (meeting.mine->result != ncclSuccess || *window == nullptr) return {};
    std::shared_ptr<void> registration(*window, [this](void* registered) {
      if (std::uncaught_exceptions() > 0) return;
      beside(gpu(), [comm = connection_.get(), registered](ncclComm_t&) {
        return nccl().window_deregister(comm, static_cast<ncclWindow_t>(registered));
      })->wait(kEndMax);
    });
    return meeting.done ? registration : nullptr;
  }

  Pending start_all_reduce(TensorView values) override {
    expect_summable("all_reduce", values);
    // A ring sends size() - 1 shards to reduce-scatter, and as many to all-gather.
    inner().compare_calls(Operation::kAllReduce, values.dtype, bytes_of(values));
    return start(Operation::kAllReduce, bytes_of(values),
                 all_reduce_bytes_sent(values.count(), values.dtype, size(), rank()), [&] {
                   return nccl().all_reduce(values.data, values.data, count_of(values),
                                            type_of(values), ncclSum, connection_.get(), stream());
                 });
  }
  Pending start_reduce_scatter(TensorView shards) override {
    expect_summable("reduce_scatter", shards);
    expect_shards("reduce_scatter", shards);
    inner().compare_calls(Operation::kReduceScatter, shards.dtype, bytes_of(shards));
    return start(Operation::kReduceScatter, bytes_of(shards),
                 one_way_bytes_sent(bytes_of(shards), size()), [&] {
                   return nccl().reduce_scatter(shards.data, own_shard(shards),
                                                count_of(shards) / ranks(), type_of(shards),
                                                ncclSum, connection_.get(), stream());
                 });
  }
  Pending start_all_gather(TensorView shards) override {
    expect_shards("all_gather", shards);
    inner().compare_calls(Operation::kAllGather, shards.dtype, bytes_of(shards));
    return start(
        Operation::kAllGather, bytes_of(shards), one_way_bytes_sent(bytes_of(shards), size()), [&] {
          return nccl().all_gather(own_shard(shards), shards.data, shards.bytes() / ranks(),
                                   ncclInt8, connection_.get(), stream());
        });
  }
  Pending start_exchange(std::span<const Message> sends,
                         std::span<const Message> receives) override {
    expect_messages(sends, receives);
    std::int64_t bytes = 0;
    for (const Message& message : receives) bytes += bytes_of(message);
    for (const Message& message : sends) bytes += bytes_of(message);
    // One group: its calls run together, and those of two ranks match in order.
    const auto call_all = [&] {
      ncclResult_t first = nccl().group_start();
      const auto call = [&](ncclResult_t result) {
        if (first == ncclSuccess) first = result;
      };
      for (const Message& message : sends) {
        if (message.bytes.empty()) continue;
        call(nccl().send(message.bytes.data(), message.bytes.size(), ncclInt8, message.rank,
                         connection_.get(), stream()));
      }
      for (const Message& message : receives) {
        if (message.bytes.empty()) continue;
        call(nccl().receive(message.bytes.data(), message.bytes.size(), ncclInt8, message.rank,
                            connection_.get(), stream()));
      }
      const ncclResult_t last = nccl().group_end();
      return first == ncclSuccess ? last : first;
    };
    const bool one_way = sends.empty() || receives.empty();
    return start(Operation::kExchange, bytes, bytes_sent(sends), call_all,
                 one_way ? Recorded::kBeside : Recorded::kInOneOrder);
  }

 private:
  static std::int64_t bytes_of(const TensorView& view) {
    return static_cast<std::int64_t>(view.bytes());
  }
  static std::int64_t bytes_of(const Message& message) {
    return static_cast<std::int64_t>(message.bytes.size());
  }
  static std::size_t count_of(const TensorView& view) {
    return static_cast<std::size_t>(view.count());
  }
  static ncclDataType_t type_of(const TensorView& view) {
    return view.dtype == DType::kBF16 ? ncclBfloat16 : ncclFloat32;
  }
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  [[nodiscard]] int gpu() const { return context_.device().index; }
  /// Some rank could not: all know why, and that no call is under way any more. Collective.
  void say_unregistered(Call& mine) {
    constexpr std::string_view kStuck = "a call does not come back";
    const std::vector<std::string> why =
        inner().all_gather_text(mine.wait(kEndMax) ? std::string_view(mine.text) : kStuck);
    const auto text = std::max_element(why.begin(), why.end());  // not an empty one
    if (std::find(why.begin(), why.end(), kStuck) != why.end()) {
      throw DeviceError(
          "NCCL: registering the memory of transfers on {}: {}. NCCL_WIN_ENABLE=0 leaves it out",
          name_, kStuck);
    }
    if (rank() != 0) return;
    log_warning(
        "NCCL does not register the memory of transfers on {} ({}): they go through its own", name_,
        *text);
  }
  /// As NCCL does from 2.27 on, in memory of its own allocator.
  static bool registers_memory() {
    return nccl().memory_allocate != nullptr && nccl().memory_free != nullptr &&
           nccl().window_register != nullptr && nccl().window_deregister != nullptr;
  }
  [[nodiscard]] std::byte* own_shard(const TensorView& shards) const {
    return shards.data + shards.bytes() / ranks() * static_cast<std::size_t>(rank());
  }
  /// Where recorded transfers go. What is sent one way, between stages of a pipeline, takes few
  /// multiprocessors and would hold back all that is behind it until the neighbour comes to it.
  enum class Recorded : std::uint8_t { kInOneOrder, kBeside };

  /// Of the transfer that is being started.
  [[nodiscard]] cudaStream_t stream() const {
    return static_cast<cudaStream_t>(in_one_order_ ? context_.recorded_transfers() : stream_.get());
  }

  /// `call()` puts the transfer into stream(), behind what the compute stream holds so far.
  template <class Call>
  Pending start(Operation operation, std::int64_t bytes, std::int64_t sent, const Call& call,
                Recorded recorded = Recorded::kInOneOrder) {
    if (bytes == 0) return {};
    const bool recording = gpu::capturing(context_.exec().stream);
    in_one_order_ = recording && recorded == Recorded::kInOneOrder;
    if (!recording) sweep();  // which asks events, and they know nothing while work is recorded
    void* done = take_event();
    if (!recording) transfers_.push_back({done, recorder_.begin(name_of(operation), bytes, name_)});
    gpu::record(done, context_.exec().stream);
    gpu::wait(stream(), done);
    if (const ncclResult_t result = call(); result != ncclSuccess) {
      fail(result, nccl().last_error(connection_.get()),
           fmt::format("{} of {} bytes on {}", name_of(operation), bytes, name_));
    }
    gpu::record(done, stream());
    count(sent);
    if (recording) {
      return Pending([this, done] {
        gpu::wait(context_.exec().stream, done);
        free_.push_back(done);
      });
    }
    return Pending([this, done] {
      connection_.check(fmt::format("a transfer on {}", name_));
      gpu::wait(context_.exec().stream, done);
      for (Transfer& transfer : transfers_) transfer.waited |= transfer.done == done;
      sweep();
    });
  }

  struct Transfer {
    void* done;  ///< event
    std::int64_t sequence;
    bool waited = false;  ///< the compute stream has been made to
    bool recorded_end = false;
  };

  /// Notes what is done by now; its events serve again once nobody will ask for them.
  void sweep() {
    for (Transfer& transfer : transfers_) {
      if (!transfer.recorded_end && gpu::finished(transfer.done)) {
        recorder_.end(transfer.sequence);
        transfer.recorded_end = true;
      }
    }
    std::erase_if(transfers_, [&](const Transfer& transfer) {
      const bool over = transfer.waited && transfer.recorded_end;
      if (over) free_.push_back(transfer.done);
      return over;
    });
  }
  void* take_event() {
    if (free_.empty()) {
      events_.emplace_back(gpu::make_event());
      free_.push_back(events_.back().get());
    }
    void* event = free_.back();
    free_.pop_back();
    return event;
  }
  void count(std::int64_t bytes_sent) {
    ++counters_.transfers;
    counters_.bytes_sent += bytes_sent;
  }
  [[nodiscard]] std::int64_t bytes_sent(std::span<const Message> sends) const {
    std::int64_t bytes = 0;
    for (const Message& message : sends)
      if (message.rank != rank()) bytes += bytes_of(message);
    return bytes;
  }

  const std::string name_;
  Context& context_;
  FlightRecorder& recorder_;
  TrafficCounters counters_;
  std::vector<Transfer> transfers_;
  gpu::Stream stream_;
  Connection connection_;  // its end ends what is still in the stream
  std::vector<gpu::Event> events_;
  std::vector<void*> free_;    ///< of events_
  bool in_one_order_ = false;  ///< the transfer that is being started: with all other channels'
};

class NcclChannels final : public GpuChannels {
 public:
  NcclChannels(Communicator& ranks, Context& context, FlightRecorder& recorder,
               TransferFaults& faults, int max_ctas)
      : ranks_(ranks),
        context_(context),
        recorder_(recorder),
        faults_(faults),
        max_ctas_(max_ctas) {}

  std::unique_ptr<Communicator> channel(Communicator& group, std::string_view name) override {
    std::array<std::int64_t, 1> largest{group.size()};
    ranks_.maximum(largest);
    if (largest[0] == 1) return make_self_communicator();
    if (!root_) connect();
    // Of a group's ranks the first, which is in no other.
    std::array<std::int64_t, 1> last{-ranks_.rank()};
    group.maximum(last);
    const int color = group.size() == 1 ? NCCL_SPLIT_NOCOLOR : static_cast<int>(-last[0]);
    const ncclComm_t comm = connected(
        ranks_, gpu(), fmt::format("dividing {} ranks for {}", ranks_.size(), name),
        [root = root_->get(), color, key = ranks_.rank(), most = max_ctas_](ncclComm_t& made) {
          ncclConfig_t config = config_of_all(most);
          return nccl().split(root, color, key, &made, &config);
        });
    if (group.size() == 1) return make_self_communicator();
    return std::make_unique<NcclChannel>(group, name, comm, context_, recorder_, faults_);
  }

 private:
  static ncclConfig_t config_of_all(int max_ctas) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;  // a call that does not block makes a thread in NCCL from 2.27 on
    config.splitShare = 1;
    if (max_ctas > 0) config.maxCTAs = max_ctas;
    return config;
  }
  [[nodiscard]] int gpu() const { return context_.device().index; }
  void connect() {
    ncclUniqueId id{};
    run_together(ranks_, [&] {
      nccl();
      if (ranks_.rank() != 0) return;
      const ncclResult_t result = nccl().get_unique_id(&id);
      if (result != ncclSuccess)
        fail(result, nccl().last_error(nullptr), "making the id of a group");
    });
    ranks_.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    root_.emplace(connected(ranks_, gpu(), fmt::format("connecting {} ranks", ranks_.size()),
                            [id, size = ranks_.size(), rank = ranks_.rank(),
                             most = max_ctas_](ncclComm_t& made) {
                              ncclConfig_t config = config_of_all(most);
                              return nccl().init_rank(&made, size, id, rank, &config);
                            }),
                  fmt::format("{} ranks", ranks_.size()), gpu(), faults_);
  }

  Communicator& ranks_;
  Context& context_;
  FlightRecorder& recorder_;
  TransferFaults& faults_;
  const int max_ctas_;
  std::optional<Connection> root_;
};

}  // namespace

std::unique_ptr<GpuChannels> make_gpu_channels(Communicator& ranks, Context& context,
                                               FlightRecorder& recorder, TransferFaults& faults,
                                               int max_ctas) {
  return std::make_unique<NcclChannels>(ranks, context, recorder, faults, max_ctas);
}

}  // namespace trireme
