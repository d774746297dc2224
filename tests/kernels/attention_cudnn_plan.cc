// Has cuDNN make its plans for GPUs that are described to it: it recognises the graph as attention,
// chooses a kernel, writes its source and compiles it. No GPU takes part; the driver that loads
// kernels is a stand-in (support/fake_cuda_driver.cc). What a plan computes only a GPU can show.
//
// A program of its own, as the driver's name stands in LD_LIBRARY_PATH. 77: cuDNN or NVRTC is not
// here.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/attention/attention_library_table.h"

namespace trireme {
namespace {

/// A GPU in cuDNN's words; of what it is asked only what differs between them.
struct Gpu {
  const char* name;
  int version, multiprocessors, shared_bytes;
  [[nodiscard]] std::string json() const {
    return fmt::format(
        R"({{"deviceName":"{}","deviceVer":{},"multiProcessorCount":{},)"
        R"("maxSharedMemoryPerBlockOptin":{},"maxSharedMemoryPerBlock":49152,)"
        R"("reservedSharedMemoryPerBlock":1024,"maxGridSize":[2147483647,65535,65535],)"
        R"("maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"maxRegistersPerSM":65536,)"
        R"("maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"warpSize":32,)"
        R"("pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1980000,)"
        R"("memClockRateKHz":3201000,"l2CacheSize":52428800,"driverVer":13000,"cudaDeviceId":0,)"
        R"("totalGlobalMem":140000000000}})",
        name, version, multiprocessors, shared_bytes);
  }
};
constexpr Gpu kH200 = {"NVIDIA H200", 900, 132, 232448}, kA100 = {"NVIDIA A100", 800, 108, 166912};

AttentionLayout attention(std::int64_t sequences, std::int64_t tokens, std::int64_t heads,
                          std::int64_t kv_heads, std::int64_t head_dim, bool deterministic) {
  const std::int64_t row = (heads + 2 * kv_heads) * head_dim, o = heads * head_dim;
  return {sequences, tokens, heads, kv_heads, head_dim, head_dim,
          row,       row,    row,   o,        o,        deterministic};
}

void expect_plans(const Gpu& gpu, const AttentionLayout& shape) {
  for (const LibraryPass pass : {LibraryPass::kForward, LibraryPass::kBackward}) {
    std::size_t bytes = 0;
    ASSERT_NO_THROW(bytes = cuda::attention_cudnn_planned_bytes(shape, pass, gpu.json()))
        << gpu.name;
    const std::int64_t bound = library_workspace_bound(shape, pass);
    EXPECT_LE(static_cast<std::int64_t>(bytes), bound) << gpu.name;
    std::printf("%s, %lld tokens, %lld/%lld heads of %lld, %s%s: %zu of at most %lld bytes\n",
                gpu.name, static_cast<long long>(shape.tokens), static_cast<long long>(shape.heads),
                static_cast<long long>(shape.kv_heads), static_cast<long long>(shape.head_dim),
                pass == LibraryPass::kForward ? "forward" : "backward",
                pass == LibraryPass::kBackward && shape.deterministic ? ", deterministic" : "",
                bytes, static_cast<long long>(bound));
  }
}

TEST(AttentionCudnnPlan, cudnn_makes_plans_of_grouped_heads) {
  expect_plans(kH200, attention(1, 2048, 8, 2, 128, true));
  expect_plans(kH200, attention(1, 2048, 8, 2, 128, false));
}

TEST(AttentionCudnnPlan, cudnn_makes_plans_of_odd_lengths_and_sizes) {
  expect_plans(kH200, attention(3, 77, 6, 6, 72, true));
  expect_plans(kA100, attention(1, 1000, 4, 2, 64, false));
}

TEST(AttentionCudnnPlan, cudnn_makes_plans_of_values_of_fewer_dims_than_keys) {
  for (const bool deterministic : {true, false}) {
    AttentionLayout latent = attention(1, 2048, 16, 16, 192, deterministic);
    latent.value_dim = 128;
    latent.q_stride = latent.k_stride = latent.v_stride = 16 * (2 * 192 + 128);
    latent.o_stride = latent.d_o_stride = 16 * 128;
    expect_plans(kH200, latent);
  }
}

TEST(AttentionCudnnPlan, what_it_has_no_kernel_for_is_said) {
  try {
    (void)cuda::attention_cudnn_planned_bytes(attention(1, 512, 4, 4, 256, true),
                                              LibraryPass::kBackward, kA100.json());
    FAIL() << "a plan for heads of 256 on an A100";
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("no deterministic kernel for the backward pass of "
                        "attention over 512 tokens"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace trireme

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  if (const char* const missing = trireme::cuda::attention_cudnn.missing()) {
    std::printf("skipped: %s\n", missing);
    return 77;
  }
  const std::string nvrtc = fmt::format("libnvrtc.so.{}", CUDART_VERSION / 1000);
  if (::dlopen(nvrtc.c_str(), RTLD_LAZY) == nullptr) {
    std::printf("skipped: cuDNN compiles by NVRTC, and %s\n", ::dlerror());
    return 77;
  }
  std::printf("cuDNN %lld\n", static_cast<long long>(trireme::cuda::attention_cudnn.version()));
  return RUN_ALL_TESTS();
}
