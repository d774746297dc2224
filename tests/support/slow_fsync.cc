// A slow disk: preloaded into a program, it makes every fsync of a file below a folder named
// "checkpoints" take TRIREME_SLOW_FSYNC_MS milliseconds more.

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" int fsync(int descriptor) {
  using Call = int (*)(int);
  static const auto call = reinterpret_cast<Call>(::dlsym(RTLD_NEXT, "fsync"));
  static const char* delay = std::getenv("TRIREME_SLOW_FSYNC_MS");
  char link[64], target[4096] = {};
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  if (delay != nullptr && ::readlink(link, target, sizeof target - 1) > 0 &&
      std::strstr(target, "/checkpoints/") != nullptr)
    ::usleep(static_cast<useconds_t>(std::atoi(delay)) * 1000);
  return call(descriptor);
}
