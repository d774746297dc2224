// A slow machine, or one whose clock is wrong: preloaded into a program (LD_PRELOAD), it makes the
// time of one rank of an MPI job pass TRIREME_CLOCK_RATE times as fast, so that whatever it times
// seems as many times slower, and sets its calendar TRIREME_CLOCK_AHEAD seconds ahead.
//
// TRIREME_CLOCK_RANK  that rank

#include <dlfcn.h>
#include <time.h>

#include <cstdint>
#include <cstdlib>

namespace {

using Call = int (*)(clockid_t, timespec*);

struct Setting {
  double rate = 1;
  std::int64_t ahead = 0;
};

Setting read_setting() {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const char* const meant = std::getenv("TRIREME_CLOCK_RANK");
  Setting setting;
  if (rank == nullptr || meant == nullptr || std::atoi(rank) != std::atoi(meant)) return setting;
  if (const char* rate = std::getenv("TRIREME_CLOCK_RATE")) setting.rate = std::atof(rate);
  if (const char* ahead = std::getenv("TRIREME_CLOCK_AHEAD")) setting.ahead = std::atoll(ahead);
  return setting;
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* time) {
  static const auto call = reinterpret_cast<Call>(::dlsym(RTLD_NEXT, "clock_gettime"));
  static const Setting setting = read_setting();
  const int result = call(clock, time);
  if (result != 0) return result;
  if (clock == CLOCK_REALTIME) {
    time->tv_sec += setting.ahead;
  } else if (setting.rate != 1) {
    const auto ns =
        static_cast<std::int64_t>(setting.rate * (static_cast<double>(time->tv_sec) * 1e9 +
                                                  static_cast<double>(time->tv_nsec)));
    time->tv_sec = ns / 1'000'000'000;
    time->tv_nsec = ns % 1'000'000'000;
  }
  return result;
}
