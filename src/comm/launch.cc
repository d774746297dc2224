#include "comm/launch.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/program_files.h"
#include "comm/launch_variables.h"
#include "comm/mpi_communicator.h"

namespace trireme {

namespace {
#ifdef OPEN_MPI
constexpr bool kNeedsPmix = true;
#else
constexpr bool kNeedsPmix = false;
#endif

std::string this_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

[[noreturn]] void refuse(const LaunchVariables& variables, int seen) {
  throw EnvironmentError(
      "{} says that this is one of {} ranks, but MPI sees {} (each would train alone and overwrite "
      "the others' files). Type `srun --mpi=pmix -n {} train ...`, or use the mpirun of this "
      "build's MPI ({}): `mpirun -n {} train ...` or `{} -n {} ...`.",
      variables.source, variables.ranks, seen, variables.ranks, mpi_library_name(), variables.ranks,
      program_file_to_type("scripts/run.sh"), variables.ranks);
}
}  // namespace

std::string mpi_library_name() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) return "unknown MPI";
  const std::string_view name(text.data(), static_cast<std::size_t>(length));
  return std::string(name.substr(0, name.find_first_of(",\n")));
}

Launch::Launch() : host_name_(this_host()) {
  const LaunchVariables variables =
      read_launch_variables([](const char* name) { return std::getenv(name); });
  if (variables.ranks == 1) {
    job_ = make_self_communicator();
    host_ = make_self_communicator();
    return;
  }
  // Open MPI without PMIx ends the process inside of MPI_Init, so this comes first.
  if (kNeedsPmix && !variables.pmix) refuse(variables, 1);
  start_mpi();
  if (job_->size() < variables.ranks) {
    const int seen = job_->size();
    job_.reset();
    host_.reset();
    engine_.reset();
    MPI_Finalize();
    refuse(variables, seen);
  }
  set_log_rank(job_->rank());
}

/// Settings that Open MPI reads as it starts; one set by others (mpirun --mca, environment) stays.
void prefer_settings() {
  const auto prefer = [](const char* name, const char* value) { ::setenv(name, value, 0); };
  // On one host: copying through another process's memory is refused in most containers, with an
  // error for each message, and gains nothing for messages of 256 KiB (measured).
  prefer("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
  // Between hosts over TCP: longer messages wait until both ends have polled for each other's
  // consent, and messages of 256 KiB then hide behind no computation (measured: with 64 KiB, the
  // default, nothing; with this four fifths). Early messages wait in memory of the library's, at
  // most three for each channel and source.
  prefer("OMPI_MCA_btl_tcp_eager_limit", "524288");
}

/// Over TCP a rank has a descriptor for each rank that it meets, and shells allow 1,024 of them.
void raise_descriptor_limit() {
  constexpr rlim_t kEnough = 1 << 16;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kEnough) return;
  limit.rlim_cur = std::min(limit.rlim_max, kEnough);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void Launch::start_mpi() {
  prefer_settings();
  raise_descriptor_limit();
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_SERIALIZED) {
    throw EnvironmentError(
        "{} allows only one thread to communicate (transfers run beside the computation in a "
        "second). Use an MPI built with thread support.",
        mpi_library_name());
  }
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Comm raw = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &raw),
            "MPI_Comm_split_type");
  const MpiComm host(raw);
  engine_ = std::make_shared<MpiEngine>(recorder_);
  job_ = std::make_unique<MpiCommunicator>(engine_, MPI_COMM_WORLD, "world");
  host_ = std::make_unique<MpiCommunicator>(engine_, host.get(), "host");
}

bool Launch::has_begun() {
  int begun = 0;
  return MPI_Initialized(&begun) == MPI_SUCCESS && begun != 0;
}

Launch::~Launch() {
  if (!engine_) return;
  host_.reset();
  job_.reset();
  engine_.reset();
  if (std::uncaught_exceptions() == 0) MPI_Finalize();
}

void Launch::wait_awake() {
  if (engine_) engine_->wait_awake();
}

void Launch::keep_communication_on(std::span<const int> cpus) {
  if (engine_) engine_->keep_on(cpus);
}

void Launch::check_collectives(bool on) {
  if (!engine_) return;
  static_cast<MpiCommunicator&>(*job_).check_collectives(on);
  static_cast<MpiCommunicator&>(*host_).check_collectives(on);
}

void Launch::abort(int code) noexcept {
  std::fflush(nullptr);
  if (engine_) {
    try {
      // MPI_Abort waits until the launcher ends this rank too, Open MPI's for two seconds; what it
      // has to know is on its way long before, and it may be gone.
      std::thread([code] {
        std::this_thread::sleep_for(std::chrono::seconds(1));
        ::_exit(code);
      }).detach();
      // The lock would do where MPI allows one thread; one stuck in MPI must not stop this.
      const std::unique_lock lock(engine_->mutex(), std::chrono::milliseconds(200));
      MPI_Abort(MPI_COMM_WORLD, code);
    } catch (...) {
    }
  }
  ::_exit(code);
}

}  // namespace trireme
