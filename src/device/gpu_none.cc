// A program without GPU code.

#include "base/error.h"
#include "device/gpu.h"

namespace trireme::gpu {
namespace {
[[noreturn]] void absent() {
  throw EnvironmentError(
      "this build has only the CPU backend (no GPU can be used). Set run.device to \"cpu\", or "
      "build with -DTRIREME_CUDA=ON");
}
}  // namespace

std::string_view backend_name() { return "none"; }
int device_count() { absent(); }
Info info(int) { absent(); }
Code code_for(int) { return Code::kNone; }
std::string architectures() { return "none"; }
void select(int) { absent(); }
std::size_t free_bytes() { absent(); }
std::size_t used_bytes() { absent(); }
std::byte* allocate(std::size_t) { absent(); }
void release(std::byte*) noexcept {}
std::byte* allocate_pinned(std::size_t) { absent(); }
void release_pinned(std::byte*) noexcept {}
void copy(void*, const void*, std::size_t, void*) { absent(); }
void copy_rows(const Rows&, const Rows&, std::size_t, std::size_t, void*) { absent(); }
void clear(void*, std::size_t, void*) { absent(); }
void* make_stream(Priority) { absent(); }
void destroy_stream(void*) noexcept {}
void synchronize(void*) { absent(); }
void* make_event() { absent(); }
void destroy_event(void*) noexcept {}
void record(void*, void*) { absent(); }
void wait(void*, void*) { absent(); }
void wait_here(void*) { absent(); }
bool finished(void*) { absent(); }
void* make_timing_event() { absent(); }
double elapsed_microseconds(void*, void*) { absent(); }
void begin_capture(void*) { absent(); }
bool capturing(void*) { absent(); }
void* end_capture(void*) { absent(); }
void abandon_capture(void*) noexcept {}
void replay(void*, void*) { absent(); }
void destroy_graph(void*) noexcept {}

}  // namespace trireme::gpu
