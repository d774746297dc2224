#include "preflight/speed_probe.h"

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/hash.h"
#include "base/random.h"
#include "base/trace.h"
#include "device/gpu.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm.h"
#include "plan/machine_rates.h"
#include "tensor/buffer.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

/// A CPU's matrices are small enough to stay in its caches; a GPU executed on the host is slow.
constexpr std::int64_t kSide = 512, kGpuSide = 8192, kHostGpuSide = 64;
constexpr std::int64_t kCopyBytesMax = 256 << 20, kGpuCopyBytes = 1 << 30,
                       kHostGpuCopyBytes = 1 << 18;
/// Schedulers change what runs on a core after a few milliseconds, ten at most.
constexpr std::int64_t kStretchNs = 50'000'000;

bool on_real_gpu(const Context& context) {
  return context.on_gpu() && gpu::backend_name() == "cuda";
}

std::int64_t of_device(const Context& context, std::int64_t cpu, std::int64_t gpu,
                       std::int64_t host_gpu) {
  if (!context.on_gpu()) return cpu;
  return on_real_gpu(context) ? gpu : host_gpu;
}

std::int64_t thread_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

/// `amount` each time. The first time pays for pages and what libraries make once.
template <class Work>
Speed best_stretch(Context& context, double seconds, double amount, const Work& work) {
  work();
  context.synchronize();
  Speed best;
  const std::int64_t begin_ns = steady_now_ns();
  std::int64_t now_ns = begin_ns;
  do {
    const std::int64_t stretch_ns = now_ns, thread_begin_ns = thread_ns();
    double times = 0;
    do {
      work();
      context.synchronize();
      ++times;
      now_ns = steady_now_ns();
    } while (now_ns - stretch_ns < kStretchNs);
    const double ns = static_cast<double>(now_ns - stretch_ns);
    const double per_second = times * amount / (ns * 1e-9);
    if (per_second <= best.per_second) continue;
    best.per_second = per_second;
    if (!context.on_gpu())
      best.share = std::min(1.0, static_cast<double>(thread_ns() - thread_begin_ns) / ns);
  } while (static_cast<double>(now_ns - begin_ns) * 1e-9 < seconds);
  return best;
}

/// Values of all mantissas, so that a wrong bit of a product shows.
Buffer filled(Context& context, DType dtype, const Shape& shape, const char* name) {
  Buffer buffer(dtype, shape);
  std::vector<float> values(static_cast<std::size_t>(shape.count()));
  fill_uniform(stream_key(0, name), 0, 1, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) buffer.view().as<float>()[i] = values[i];
    if (dtype == DType::kBF16) buffer.view().as<BFloat16>()[i] = to_bfloat16(values[i]);
  }
  if (!context.on_gpu()) return buffer;
  Buffer copy(dtype, shape, context.device());
  copy_in(context, copy.view(), {buffer.view().data, buffer.bytes()});
  return copy;
}

std::string hash_of(Context& context, const Buffer& buffer) {
  std::vector<std::byte> bytes(buffer.bytes());
  copy_out(context, bytes, buffer.view());
  return xxh3_128_hex(bytes);
}

}  // namespace

Speed SpeedProbe::products(double seconds) {
  const std::int64_t side = of_device(context_, kSide, kGpuSide, kHostGpuSide);
  const Shape shape{side, side};
  const Buffer a = filled(context_, type_, shape, "a"), b = filled(context_, type_, shape, "b");
  const Buffer c(type_, shape, context_.device());
  Gemm args;
  args.c_MN = c.view();
  args.a = a.view();
  args.b = b.view();
  const double operations = 2.0 * static_cast<double>(side * side * side);
  const auto look = [&] {
    const std::string bits = hash_of(context_, c);
    if (bits_.empty()) bits_ = bits;
    steady_ = steady_ && bits == bits_;
  };
  gemm(context_, args);
  look();
  const Speed best = best_stretch(context_, seconds, operations, [&] { gemm(context_, args); });
  look();
  return best;
}

Speed SpeedProbe::copies(double seconds) {
  const std::int64_t bytes = of_device(context_, std::min(copy_bytes_beyond_cache(), kCopyBytesMax),
                                       kGpuCopyBytes, kHostGpuCopyBytes);
  const Shape shape{bytes / 8};
  const Buffer from(DType::kF32, shape, context_.device()),
      to(DType::kF32, shape, context_.device());
  clear(context_, from.view());  // pages of its own, not the system's one of zeros
  return best_stretch(context_, seconds, static_cast<double>(bytes),
                      [&] { cast(context_, to.view(), from.view()); });
}

Speed SpeedProbe::copies_to_host(double seconds) {
  if (!context_.on_gpu()) return {};
  const auto bytes =
      static_cast<std::size_t>(on_real_gpu(context_) ? kGpuCopyBytes / 4 : kHostGpuCopyBytes);
  const Memory from(context_.device(), bytes);
  const gpu::PinnedBytes to(gpu::allocate_pinned(bytes));
  return best_stretch(context_, seconds, static_cast<double>(bytes),
                      [&] { gpu::copy(to.get(), from.data(), bytes, context_.exec().stream); });
}

}  // namespace trireme
