// NCCL, found when the program runs: one that trains on a single GPU needs none.

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <array>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "comm/collective_check.h"
#include "comm/gpu_channel.h"
#include "comm/gpu_channel_base.h"
#include "device/gpu.h"

namespace trireme {

namespace {

/// What is used of NCCL's interface.
struct NcclLibrary {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank = nullptr;
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
};

NcclLibrary open_library() {
  void* handle = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw EnvironmentError(
        "NCCL cannot be loaded: {} (several GPUs sum gradients by it). Install libnccl2, or set "
        "LD_LIBRARY_PATH to the folder of libnccl.so.2",
        ::dlerror());
  }
  NcclLibrary nccl;
  const auto take = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    if (function == nullptr) {
      throw EnvironmentError(
          "this NCCL is too old: it has no {} (the program was built with NCCL {}.{}.{}). Install "
          "a newer libnccl2",
          name, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
    }
  };
  take("ncclGetVersion", nccl.get_version);
  take("ncclGetUniqueId", nccl.get_unique_id);
  take("ncclCommInitRankConfig", nccl.init_rank);
  take("ncclCommGetAsyncError", nccl.async_error);
  take("ncclGetErrorString", nccl.error_string);
  take("ncclGetLastError", nccl.last_error);
  take("ncclCommFinalize", nccl.finalize);
  take("ncclCommDestroy", nccl.destroy);
  take("ncclCommAbort", nccl.abort);
  take("ncclAllReduce", nccl.all_reduce);
  take("ncclReduceScatter", nccl.reduce_scatter);
  take("ncclAllGather", nccl.all_gather);
  take("ncclGroupStart", nccl.group_start);
  take("ncclGroupEnd", nccl.group_end);
  take("ncclSend", nccl.send);
  take("ncclRecv", nccl.receive);
  return nccl;
}

const NcclLibrary& library() {
  static const NcclLibrary nccl = open_library();
  return nccl;
}

[[noreturn]] void fail(ncclComm_t comm, ncclResult_t result, std::string_view what) {
  throw DeviceError(
      "NCCL: {}: {} ({}). NCCL_DEBUG=INFO tells more; NCCL_SOCKET_IFNAME and NCCL_IB_HCA choose "
      "the network",
      what, library().error_string(result), library().last_error(comm));
}

/// Ranks connect when they are in the same place of the program; the slowest has loaded by then.
constexpr std::chrono::minutes kConnectMax{10};

/// Calls of a non-blocking communicator go on behind their return; this waits for them. A rank that
/// failed before its call never comes, and would be waited for without end.
void await_result(ncclComm_t comm, ncclResult_t result, std::string_view what) {
  const auto begin = std::chrono::steady_clock::now();
  while (result == ncclInProgress) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (std::chrono::steady_clock::now() - begin > kConnectMax) {
      throw DeviceError(
          "NCCL: {}: not done after {} minutes (a rank has failed, or the network between hosts is "
          "closed). NCCL_DEBUG=INFO tells more; NCCL_SOCKET_IFNAME chooses the network",
          what, kConnectMax.count());
    }
    const ncclResult_t asked = library().async_error(comm, &result);
    if (asked != ncclSuccess) fail(comm, asked, what);
  }
  if (result != ncclSuccess) fail(comm, result, what);
}

class NcclChannel final : public GpuChannel {
 public:
  NcclChannel(Communicator& group, std::string_view name, Context& context,
              FlightRecorder& recorder)
      : GpuChannel(group.channel(name)), name_(name), context_(context), recorder_(recorder) {
    ncclUniqueId id{};
    run_together(*host_, [&] {
      library();
      if (rank() != 0) return;
      const ncclResult_t result = library().get_unique_id(&id);
      if (result != ncclSuccess) fail(nullptr, result, "making the id of a group");
    });
    host_->broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    run_together(*host_, [&] {
      gpu::select(context_.device().index);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      const ncclResult_t result = library().init_rank(&comm_, size(), id, rank(), &config);
      try {
        await_result(comm_, result, fmt::format("connecting {} ranks", size()));
      } catch (...) {
        // The destructor of what was not constructed does not run.
        if (comm_ != nullptr) library().abort(std::exchange(comm_, nullptr));
        throw;
      }
    });
    stream_ = gpu::Stream(gpu::make_stream());
  }
  ~NcclChannel() override {
    if (comm_ != nullptr && std::uncaught_exceptions() > 0) {
      library().abort(comm_);  // others may never come to do their part
    } else if (comm_ != nullptr) {
      ncclResult_t result = library().finalize(comm_);
      while (result == ncclInProgress) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        if (library().async_error(comm_, &result) != ncclSuccess) break;
      }
      library().destroy(comm_);
    }
  }
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  Pending start_all_reduce(TensorView values) override {
    expect_summable("all_reduce", values);
    // A ring sends size() - 1 shards to reduce-scatter, and as many to all-gather.
    host_->compare_calls(Operation::kAllReduce, values.dtype, bytes_of(values));
    return start(Operation::kAllReduce, bytes_of(values),
                 all_reduce_bytes_sent(values.count(), values.dtype, size(), rank()), [&] {
                   return library().all_reduce(values.data, values.data, count_of(values),
                                               type_of(values), ncclSum, comm_, stream());
                 });
  }
  Pending start_reduce_scatter(TensorView shards) override {
    expect_summable("reduce_scatter", shards);
    expect_shards("reduce_scatter", shards);
    host_->compare_calls(Operation::kReduceScatter, shards.dtype, bytes_of(shards));
    return start(Operation::kReduceScatter, bytes_of(shards),
                 one_way_bytes_sent(bytes_of(shards), size()), [&] {
                   return library().reduce_scatter(shards.data, own_shard(shards),
                                                   count_of(shards) / ranks(), type_of(shards),
                                                   ncclSum, comm_, stream());
                 });
  }
  Pending start_all_gather(TensorView shards) override {
    expect_shards("all_gather", shards);
    host_->compare_calls(Operation::kAllGather, shards.dtype, bytes_of(shards));
    return start(Operation::kAllGather, bytes_of(shards),
                 one_way_bytes_sent(bytes_of(shards), size()), [&] {
                   return library().all_gather(own_shard(shards), shards.data,
                                               shards.bytes() / ranks(), ncclInt8, comm_, stream());
                 });
  }
  Pending start_exchange(std::span<const Message> sends,
                         std::span<const Message> receives) override {
    expect_messages(sends, receives);
    std::int64_t bytes = 0;
    for (const Message& message : receives) bytes += bytes_of(message);
    for (const Message& message : sends) bytes += bytes_of(message);
    // One group: its calls run together, and those of two ranks match in order.
    return start(Operation::kExchange, bytes, bytes_sent(sends), [&] {
      ncclResult_t first = library().group_start();
      const auto call = [&](ncclResult_t result) {
        if (first == ncclSuccess && result != ncclInProgress) first = result;
      };
      for (const Message& message : sends) {
        if (message.bytes.empty()) continue;
        call(library().send(message.bytes.data(), message.bytes.size(), ncclInt8, message.rank,
                            comm_, stream()));
      }
      for (const Message& message : receives) {
        if (message.bytes.empty()) continue;
        call(library().receive(message.bytes.data(), message.bytes.size(), ncclInt8, message.rank,
                               comm_, stream()));
      }
      const ncclResult_t last = library().group_end();
      return first == ncclSuccess ? last : first;
    });
  }

  std::unique_ptr<Communicator> channel(std::string_view name) override {
    return std::make_unique<NcclChannel>(*host_, name, context_, recorder_);
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
  [[nodiscard]] std::byte* own_shard(const TensorView& shards) const {
    return shards.data + shards.bytes() / ranks() * static_cast<std::size_t>(rank());
  }
  /// Of the transfer that is being started.
  [[nodiscard]] cudaStream_t stream() const {
    return static_cast<cudaStream_t>(recording_ ? context_.recorded_transfers() : stream_.get());
  }

  /// `call()` puts the transfer into stream(), behind what the compute stream holds so far.
  template <class Call>
  Pending start(Operation operation, std::int64_t bytes, std::int64_t sent, const Call& call) {
    if (bytes == 0) return {};
    recording_ = gpu::capturing(context_.exec().stream);
    if (!recording_) sweep();  // which asks events, and they know nothing while work is recorded
    void* done = take_event();
    if (!recording_)
      transfers_.push_back({done, recorder_.begin(name_of(operation), bytes, name_)});
    gpu::record(done, context_.exec().stream);
    gpu::wait(stream(), done);
    await_result(comm_, call(),
                 fmt::format("{} of {} bytes on {}", name_of(operation), bytes, name_));
    gpu::record(done, stream());
    count(sent);
    if (recording_) {
      return Pending([this, done] {
        gpu::wait(context_.exec().stream, done);
        free_.push_back(done);
      });
    }
    return Pending([this, done] {
      check();
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
  /// A rank that died shows here, and no kernel then waits for it for ever.
  void check() {
    ncclResult_t result = ncclSuccess;
    library().async_error(comm_, &result);
    if (result == ncclSuccess || result == ncclInProgress) return;
    library().abort(std::exchange(comm_, nullptr));
    fail(nullptr, result, fmt::format("a transfer on {}", name_));
  }

  std::string name_;
  Context& context_;
  FlightRecorder& recorder_;
  std::vector<Transfer> transfers_;
  ncclComm_t comm_ = nullptr;
  gpu::Stream stream_;
  std::vector<gpu::Event> events_;
  std::vector<void*> free_;  ///< of events_
  bool recording_ = false;   ///< the transfer that is being started is part of recorded work
};

}  // namespace

std::unique_ptr<Communicator> make_gpu_channel(Communicator& group, std::string_view name,
                                               Context& context, FlightRecorder& recorder) {
  return std::make_unique<NcclChannel>(group, name, context, recorder);
}

}  // namespace trireme
