#pragma once

#include <functional>
#include <string_view>

#include "base/error.h"
#include "comm/launch.h"
#include "commands/ending.h"
#include "guard/launch_guard.h"

namespace trireme {

/// Runs `body` as one rank of the job and returns how it ends. Of several ranks none leaves with
/// another code than 0 before rank 0 has reported it, as the program's last words; a fault that all
/// ranks know of (SharedError) likewise. Any other fault is this rank's alone: it is printed here
/// and ends every rank, unless another one of the host has the last word by `guard`, null where
/// there is none. Alone, faults go on to the caller.
Ending on_every_rank(const std::function<Ending(Launch&)>& body, LaunchGuard* guard = nullptr);

/// In place of on_every_rank, for a rank whose command line is wrong: meets the others there and
/// ends with them as SharedError does. Alone it throws the fault. MPI must not have begun.
Ending fail_on_every_rank(const Error& fault);

/// For commands of one process: EnvironmentError where several were started. `instead`: what to do.
void require_alone(std::string_view command, std::string_view instead);

}  // namespace trireme
