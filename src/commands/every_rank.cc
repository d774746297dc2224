#include "commands/every_rank.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <new>

#include "base/error.h"
#include "base/log.h"
#include "base/stop_flag.h"
#include "comm/launch_variables.h"
#include "guard/launch_guard.h"

namespace trireme {

namespace {

[[noreturn]] void end_job(Launch& launch, LaunchGuard* guard, ExitCode code, const char* what) {
  if (guard != nullptr && !guard->claim().take(static_cast<int>(code)))
    ::_exit(guard->claim().taken());
  const int rank = launch.job().rank();
  set_log_rank(0);  // this rank speaks for the job
  log_info("error: rank {}: {}", rank, what);
  log_info("train: exit {} (rank {} ended the job)", static_cast<int>(code), rank);
  launch.abort(static_cast<int>(code));
}

/// Launchers end a job at the first code that is not 0: nobody leaves before rank 0 has said why.
Ending leave_together(Launch& launch, Ending ending, const char* fault) {
  std::fflush(stdout);
  if (fault != nullptr) {
    print_fault(ending.code, fault);
  } else {
    log_info_text(closing_line(ending));
  }
  announce_exit_code(ending.code);
  launch.job().barrier();
  silence_log();
  return ending;
}

/// `prepare` throws where this rank has failed before it met the others: then all are reported.
Ending meet(const std::function<void()>& prepare, const std::function<Ending(Launch&)>& body,
            LaunchGuard* guard) {
  Launch launch;
  if (launch.job().size() == 1) {
    prepare();
    return body(launch);
  }
  // Caught in the life of `launch`: unwinding through it would leave MPI without its end.
  try {
    run_together(launch.job(), prepare);
    Ending ending = body(launch);
    return ending.code == 0 ? ending : leave_together(launch, std::move(ending), nullptr);
  } catch (const SharedError& error) {
    return leave_together(launch, static_cast<int>(error.code()), error.what());
  } catch (const Error& error) {
    end_job(launch, guard, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    end_job(launch, guard, ExitCode::kEnvironment,
            "out of memory. Use a smaller batch or fewer ranks on this machine.");
  } catch (const std::exception& error) {
    end_job(launch, guard, ExitCode::kInternal, error.what());
  }
}

}  // namespace

Ending on_every_rank(const std::function<Ending(Launch&)>& body, LaunchGuard* guard) {
  return meet([] {}, body, guard);
}

Ending fail_on_every_rank(const Error& fault) {
  LaunchGuard guard([] { return 0.0; });
  const auto fail = [&] { throw Error(fault.code(), fault.what()); };
  const auto nothing = [](Launch&) { return Ending(0); };
  try {
    return meet(fail, nothing, &guard);
  } catch (
      const Error&) {  // alone, or MPI does not see the others: what was wrong first is reported
    throw Error(fault.code(), fault.what());
  }
}

void require_alone(std::string_view command, std::string_view instead) {
  const LaunchVariables launched =
      read_launch_variables([](const char* name) { return std::getenv(name); });
  if (launched.ranks <= 1) return;
  throw EnvironmentError("{}: is one process, and a launcher has started {} ({}). {}", command,
                         launched.ranks, launched.source, instead);
}

}  // namespace trireme
