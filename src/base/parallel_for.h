#pragma once
// Jobs without order, outside of steps (files, buffers): inside a step the ops have their own team.

#include <cstdint>
#include <functional>

namespace trireme {

/// Calls body(0) ... body(jobs - 1), each once, on this thread and helpers that end with the call:
/// one for each CPU that this thread may run on, at most 16 in all. The first exception ends it.
void parallel_for(std::int64_t jobs, const std::function<void(std::int64_t)>& body);

}  // namespace trireme
