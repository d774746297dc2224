#include "commands/every_rank.h"

#include <exception>
#include <new>

#include "base/error.h"
#include "base/log.h"

namespace trireme {

namespace {

[[noreturn]] void end_job(Launch& launch, ExitCode code, const char* what) {
  const int rank = launch.world().rank();
  set_log_rank(0);  // this rank speaks for the job
  log_info("error: rank {}: {}", rank, what);
  log_info("train: exit {} (rank {} ended the job)", static_cast<int>(code), rank);
  launch.abort(static_cast<int>(code));
}

}  // namespace

int on_every_rank(const std::function<int(Launch&)>& body) {
  std::exception_ptr shared;
  {
    Launch launch;
    if (launch.world().size() == 1) return body(launch);
    // Caught in the life of `launch`: unwinding through it would leave MPI without its end.
    try {
      return body(launch);
    } catch (const SharedError&) {
      shared = std::current_exception();
    } catch (const Error& error) {
      end_job(launch, error.code(), error.what());
    } catch (const std::bad_alloc&) {
      end_job(launch, ExitCode::kEnvironment,
              "out of memory. Use a smaller batch or fewer ranks on this machine.");
    } catch (const std::exception& error) {
      end_job(launch, ExitCode::kInternal, error.what());
    }
  }
  std::rethrow_exception(shared);
}

}  // namespace trireme
