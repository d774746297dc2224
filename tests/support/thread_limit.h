#pragma once

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace trireme {

/// While it lives no more than so many threads at a time find room for their stacks.
class ThreadLimit {
 public:
  explicit ThreadLimit(std::size_t threads) {
    constexpr std::size_t kStack = std::size_t{1} << 30;
    pthread_getattr_default_np(&before_);
    pthread_attr_t large;
    pthread_attr_init(&large);
    pthread_attr_setstacksize(&large, kStack);
    pthread_setattr_default_np(&large);
    pthread_attr_destroy(&large);
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    ::getrlimit(RLIMIT_AS, &memory_);
    rlimit limit = memory_;
    limit.rlim_cur =
        pages * static_cast<std::size_t>(::getpagesize()) + threads * kStack + kStack / 2;
    ::setrlimit(RLIMIT_AS, &limit);
  }
  ~ThreadLimit() {
    ::setrlimit(RLIMIT_AS, &memory_);
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  pthread_attr_t before_;
  rlimit memory_;
};

}  // namespace trireme
