// The only file that sees cuBLASLt, found at run time: without it our own kernels serve all.
//
// It ends a product with a bias and nothing else. Its GELU and its gradient take sums not rounded
// to bf16, and it adds a residual before rounding: neither gives the bits of the unfused sequence
// (kernels/README.md, "Numbers"). It serves what follows by the unfused sequence, where that is
// measured to be faster than our own kernels with an epilogue.
#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <type_traits>

#include "base/error.h"
#include "base/unique_handle.h"
#include "kernels/common/gpu_scratch.h"
#include "kernels/gemm/gemm_gpu_table.h"

namespace trireme::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = gpu_scratch::kProductWorkspaceBytes;

/// What is used of its interface.
struct Library {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtGetVersion) version;
};

struct Opened {
  std::optional<Library> library;
  std::string problem;  ///< why there is none
};

Opened open_library() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return {std::nullopt, ::dlerror()};
  Library lt{};
  std::string problem;
  const auto take = [&](const char* symbol, auto& function) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, symbol));
    if (function == nullptr) problem = name + " has no " + symbol;
  };
  take("cublasLtCreate", lt.create);
  take("cublasLtDestroy", lt.destroy);
  take("cublasLtMatmulDescCreate", lt.desc_create);
  take("cublasLtMatmulDescDestroy", lt.desc_destroy);
  take("cublasLtMatmulDescSetAttribute", lt.desc_set);
  take("cublasLtMatrixLayoutCreate", lt.layout_create);
  take("cublasLtMatrixLayoutDestroy", lt.layout_destroy);
  take("cublasLtMatmulPreferenceCreate", lt.preference_create);
  take("cublasLtMatmulPreferenceDestroy", lt.preference_destroy);
  take("cublasLtMatmulPreferenceSetAttribute", lt.preference_set);
  take("cublasLtMatmulAlgoGetHeuristic", lt.heuristic);
  take("cublasLtMatmul", lt.matmul);
  take("cublasLtGetStatusString", lt.status_string);
  take("cublasLtGetVersion", lt.version);
  if (!problem.empty()) return {std::nullopt, problem};
  return {lt, ""};
}

const Opened& opened() {
  static const Opened opened = open_library();
  return opened;
}
const std::optional<Library>& library() { return opened().library; }

template <class Handle, cublasStatus_t (*Library::*kDestroy)(Handle)>
struct HandleTraits {
  using Raw = Handle;
  static Raw null() { return nullptr; }
  static void destroy(Raw raw) noexcept { ((*library()).*kDestroy)(raw); }
};
using LtHandle = UniqueHandle<HandleTraits<cublasLtHandle_t, &Library::destroy>>;
using Desc = UniqueHandle<HandleTraits<cublasLtMatmulDesc_t, &Library::desc_destroy>>;
using Layout = UniqueHandle<HandleTraits<cublasLtMatrixLayout_t, &Library::layout_destroy>>;
using Preference =
    UniqueHandle<HandleTraits<cublasLtMatmulPreference_t, &Library::preference_destroy>>;

void check(const GemmGpuArgs& args, const char* what, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw EnvironmentError("gemm: cuBLASLt's {} of [{}, {}] and [{}, {}] in {} fails: {}", what,
                         args.m, args.k, args.k, args.n, name_of(args.type),
                         library()->status_string(status));
}

cudaDataType_t type_of(DType type) { return type == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F; }

/// The largest power of two, at most 256, that an address is a multiple of.
std::uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer) | 256;
  return static_cast<std::uint32_t>(address & -address);
}

struct Plan {
  Desc desc;
  Layout a, b, c;
  std::optional<cublasLtMatmulAlgo_t> algorithm;  ///< none: the library has no kernel for it
};

/// The library's matrices stand column after column: a product of ours, c = op(a) op(b), is its
/// product of c's transpose, op(b)' op(a)', and a bias of our columns is one of its rows.
class Plans {
 public:
  /// A memo: asking for a kernel takes longer than a small product.
  const Plan& get(const GemmGpuArgs& args) {
    const Key key = {args.m,
                     args.n,
                     args.k,
                     args.transpose_a * 2 + args.transpose_b,
                     args.accumulate * 2 + (args.bias != nullptr),
                     static_cast<int>(args.type) * 256 + static_cast<int>(args.c_type),
                     alignment_of(args.a),
                     alignment_of(args.b),
                     alignment_of(args.c),
                     alignment_of(args.bias)};
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
    return plans_.emplace(key, make(args)).first->second;
  }
  [[nodiscard]] cublasLtHandle_t handle() const { return handle_.get(); }

 private:
  using Key = std::array<std::int64_t, 10>;

  static Layout layout(const GemmGpuArgs& args, DType type, std::int64_t rows,
                       std::int64_t columns) {
    cublasLtMatrixLayout_t raw = nullptr;
    check(args, "layout",
          library()->layout_create(&raw, type_of(type), static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), rows));
    return Layout(raw);
  }

  Plan make(const GemmGpuArgs& args) {
    const Library& lt = *library();
    if (!handle_) {
      cublasLtHandle_t raw = nullptr;
      check(args, "start", lt.create(&raw));
      handle_ = LtHandle(raw);
    }
    Plan plan;
    cublasLtMatmulDesc_t desc = nullptr;
    check(args, "description", lt.desc_create(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    plan.desc = Desc(desc);
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      check(args, "description", lt.desc_set(desc, attribute, &value, sizeof value));
    };
    const auto operation = [](bool transpose) {
      return static_cast<std::int32_t>(transpose ? CUBLAS_OP_T : CUBLAS_OP_N);
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, operation(args.transpose_b));
    set(CUBLASLT_MATMUL_DESC_TRANSB, operation(args.transpose_a));
    if (args.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(CUBLASLT_EPILOGUE_BIAS));
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(type_of(args.type)));
      // The choice looks at how it is aligned; each product sets its own.
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
    }
    plan.a = args.transpose_b ? layout(args, args.type, args.k, args.n)
                              : layout(args, args.type, args.n, args.k);
    plan.b = args.transpose_a ? layout(args, args.type, args.m, args.k)
                              : layout(args, args.type, args.k, args.m);
    plan.c = layout(args, args.c_type, args.n, args.m);
    choose(args, plan);
    return plan;
  }

  void choose(const GemmGpuArgs& args, Plan& plan) {
    const Library& lt = *library();
    cublasLtMatmulPreference_t raw = nullptr;
    check(args, "preference", lt.preference_create(&raw));
    const Preference preference(raw);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check(args, "preference", lt.preference_set(raw, attribute, &value, sizeof value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kWorkspaceBytes});
    // Parts of a sum stay in f32 and are added in one order, never rounded to bf16.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(args.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(args.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(args.c));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(args.c));
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status =
        lt.heuristic(handle_.get(), plan.desc.get(), plan.a.get(), plan.b.get(), plan.c.get(),
                     plan.c.get(), raw, 1, &result, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return;
    check(args, "choice of a kernel", status);
    if (found > 0 && result.state == CUBLAS_STATUS_SUCCESS) plan.algorithm = result.algo;
  }

  LtHandle handle_;
  std::map<Key, Plan> plans_;
};

Plans& plans() {
  thread_local Plans plans;  // one for each thread that calls ops, so that it needs no lock
  return plans;
}

bool serves(const GemmGpuArgs& args) {
  if (!library() || args.epilogue != GemmEpilogue::kNone) return false;
  if (args.m == 0 || args.n == 0 || args.k == 0) return false;  // no layout of such a matrix there
  // It wants the bias in c's type.
  if (args.bias != nullptr && args.c_type != args.type) return false;
  return plans().get(args).algorithm.has_value();
}

void multiply(const GemmGpuArgs& args) {
  const Library& lt = *library();
  const Plan& plan = plans().get(args);
  if (args.bias != nullptr) {
    check(args, "bias",
          lt.desc_set(plan.desc.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &args.bias,
                      sizeof args.bias));
  }
  const float one = 1, beta = args.accumulate ? 1 : 0;
  check(args, "product",
        lt.matmul(plans().handle(), plan.desc.get(), &one, args.b, plan.a.get(), args.a,
                  plan.b.get(), &beta, args.c, plan.c.get(), args.c, plan.c.get(), &*plan.algorithm,
                  args.workspace, kWorkspaceBytes, static_cast<cudaStream_t>(args.exec.stream)));
}

const char* missing() { return library() ? nullptr : opened().problem.c_str(); }

std::int64_t version() { return library() ? static_cast<std::int64_t>(library()->version()) : 0; }

}  // namespace

const GemmGpuKernels gemm_cublaslt = {serves, multiply, kWorkspaceBytes, missing, version};

}  // namespace trireme::cuda
