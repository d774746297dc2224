#include "base/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/cpu_mask.h"

namespace trireme {

namespace {

constexpr std::int64_t kThreadsMax = 16;

}  // namespace

void parallel_for(std::int64_t jobs, const std::function<void(std::int64_t)>& body) {
  std::atomic<std::int64_t> next = 0;
  std::mutex mutex;
  std::exception_ptr fault;
  const auto work = [&] {
    for (std::int64_t job; (job = next++) < jobs;) {
      try {
        body(job);
      } catch (...) {
        next = jobs;
        const std::lock_guard lock(mutex);
        if (!fault) fault = std::current_exception();
      }
    }
  };
  const std::int64_t threads = std::min<std::int64_t>({jobs, cpus_of_this_thread(), kThreadsMax});
  std::vector<std::thread> helpers;
  try {
    for (std::int64_t i = 1; i < threads; ++i) helpers.emplace_back(work);
  } catch (const std::system_error&) {  // no thread to be had: those that there are do it all
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  if (fault) std::rethrow_exception(fault);
}

}  // namespace trireme
