#pragma once
// What the program asks of a GPU's runtime, behind DeviceKind::kCuda. One of three definitions is
// linked: CUDA's own runtime, the same on the host (test builds, kernels/simt_host), or none.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/unique_handle.h"

namespace trireme::gpu {

/// "cuda", "cuda-host" or "none".
std::string_view backend_name();

struct Info {
  std::string name;    ///< "NVIDIA H200"
  int capability = 0;  ///< 90 of 9.0
  int multiprocessors = 0;
  std::size_t total_bytes = 0;
  std::string pci_bus_id;  ///< "0000:3b:00.0"
};

// Either of these comes first: what the driver reads from the environment, and a user has not set,
// is set there.
/// GPUs that this process may use. EnvironmentError: no driver, an old one, or no GPU.
int device_count();
Info info(int index);
/// Who runs this program's kernels on a GPU of a capability: code for it, or for an older one of
/// its generation; code that the driver makes of PTX when the program starts; nobody.
enum class Code : std::uint8_t { kMachine, kPtx, kNone };
Code code_for(int capability);
/// "80, 90a and PTX for 80": what there is.
std::string architectures();
/// The GPU that this thread's later calls mean.
void select(int index);
/// Of the selected GPU; used: by all processes.
std::size_t free_bytes();
std::size_t used_bytes();

// Memory of the selected GPU, or pinned host memory. OutOfMemory with the size refused.
std::byte* allocate(std::size_t bytes);
void release(std::byte* memory) noexcept;
std::byte* allocate_pinned(std::size_t bytes);
void release_pinned(std::byte* memory) noexcept;

// Asynchronous, in their stream's order. Copies of pageable host memory may wait.
void copy(void* to, const void* from, std::size_t bytes, void* stream);
/// Rows of equal length, `stride` bytes from one to the next.
struct Rows {
  std::byte* data;
  std::size_t stride;
};
/// Such a copy of `rows` rows of `row_bytes` bytes, which no stride is below.
void copy_rows(const Rows& to, const Rows& from, std::size_t row_bytes, std::size_t rows,
               void* stream);
void clear(void* memory, std::size_t bytes, void* stream);

/// kHigh: what waits in it goes on as soon as a multiprocessor has room, before other streams'.
enum class Priority : std::uint8_t { kNormal, kHigh };
void* make_stream(Priority priority = Priority::kNormal);
void destroy_stream(void* stream) noexcept;
/// Waits for everything that was put into the stream; throws InternalError with what failed there.
void synchronize(void* stream);

void* make_event();
void destroy_event(void* event) noexcept;
void record(void* event, void* stream);
/// What comes later in `stream` waits for what came before the event's last record.
void wait(void* stream, void* event);
/// The caller waits for what came before the event's last record, if there was one.
void wait_here(void* event);
/// Whether that is done; does not wait.
bool finished(void* event);

/// An event that also notes when it was reached.
void* make_timing_event();
/// From one such event to a later one of the same stream; waits for both.
double elapsed_microseconds(void* begin, void* end);

// Work of a stream, recorded between begin and end in place of being done, and replayed as a whole.
// While it is recorded nothing may wait for the stream, allocate, or copy from pageable memory:
// end_capture then throws InternalError, and the stream is as it was before.
void begin_capture(void* stream);
/// Whether what is put into the stream is recorded now.
bool capturing(void* stream);
void* end_capture(void* stream);
/// Ends a recording that an error has interrupted.
void abandon_capture(void* stream) noexcept;
void replay(void* graph, void* stream);
void destroy_graph(void* graph) noexcept;

// Owners of the above.
template <class T, void (*kDestroy)(T*) noexcept>
struct HandleTraits {
  using Raw = T*;
  static Raw null() { return nullptr; }
  static void destroy(Raw raw) noexcept { kDestroy(raw); }
};
using Bytes = UniqueHandle<HandleTraits<std::byte, release>>;
using PinnedBytes = UniqueHandle<HandleTraits<std::byte, release_pinned>>;
using Stream = UniqueHandle<HandleTraits<void, destroy_stream>>;
using Event = UniqueHandle<HandleTraits<void, destroy_event>>;
using Graph = UniqueHandle<HandleTraits<void, destroy_graph>>;

}  // namespace trireme::gpu
