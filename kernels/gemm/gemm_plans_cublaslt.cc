// The only file that calls cuBLASLt, found at run time: without it our own kernels serve all.
#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "base/unique_handle.h"
#include "kernels/gemm/gemm_cublaslt.h"

namespace trireme::cuda::cublaslt {
namespace {

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

cudaDataType_t type_of(DType type) {
  switch (type) {
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF8E4M3:
      return CUDA_R_8F_E4M3;
    case DType::kF8E5M2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_32F;
  }
}

void check(const Product& p, const char* what, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw EnvironmentError("gemm: cuBLASLt's {} of [{}, {}] {} and [{}, {}] {} fails: {}", what, p.m,
                         p.k, name_of(p.type_a), p.k, p.n, name_of(p.type_b),
                         library()->status_string(status));
}

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

template <class Value>
void set(const Product& p, cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
         const Value& value) {
  check(p, "description", library()->desc_set(desc, attribute, &value, sizeof value));
}

/// Those of one product's own: plans are kept for others of the same kind.
void set_pointers(const Product& p, cublasLtMatmulDesc_t desc) {
  if (p.bias != nullptr) set(p, desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  if (p.scale_a == nullptr) return;
  set(p, desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.scale_b);
  set(p, desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.scale_a);
}

/// The library's matrices stand column after column: a product of ours, c = op(a) op(b), is its
/// product of c's transpose, op(b)' op(a)', and a bias of our columns is one of its rows.
class Plans {
 public:
  /// A memo: asking for a kernel takes longer than a small product.
  const Plan& get(const Product& p) {
    const Key key = {p.m,
                     p.n,
                     p.k,
                     p.stride_a,
                     p.stride_b,
                     p.stride_c,
                     p.transpose_a * 2 + p.transpose_b,
                     p.accumulate * 2 + (p.bias != nullptr),
                     (p.scale_a != nullptr) * 2 + p.fast_sums,
                     static_cast<int>(p.scales_a) * 256 + static_cast<int>(p.scales_b),
                     (static_cast<int>(p.type_a) * 256 + static_cast<int>(p.type_b)) * 256 +
                         static_cast<int>(p.type_c),
                     alignment_of(p.a),
                     alignment_of(p.b),
                     alignment_of(p.c),
                     alignment_of(p.bias)};
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
    return plans_.emplace(key, make(p)).first->second;
  }
  [[nodiscard]] cublasLtHandle_t handle() const { return handle_.get(); }

 private:
  using Key = std::array<std::int64_t, 15>;

  /// Of a matrix that is stored as [rows, columns].
  static Layout layout(const Product& p, DType type, std::int64_t rows, std::int64_t columns,
                       std::int64_t stride) {
    cublasLtMatrixLayout_t raw = nullptr;
    check(
        p, "layout",
        library()->layout_create(&raw, type_of(type), static_cast<std::uint64_t>(columns),
                                 static_cast<std::uint64_t>(rows), stride == 0 ? columns : stride));
    return Layout(raw);
  }

  Plan make(const Product& p) {
    const Library& lt = *library();
    if (!handle_) {
      cublasLtHandle_t raw = nullptr;
      check(p, "start", lt.create(&raw));
      handle_ = LtHandle(raw);
    }
    Plan plan;
    plan.desc = describe(p);
    plan.a = p.transpose_b ? layout(p, p.type_b, p.n, p.k, p.stride_b)
                           : layout(p, p.type_b, p.k, p.n, p.stride_b);
    plan.b = p.transpose_a ? layout(p, p.type_a, p.k, p.m, p.stride_a)
                           : layout(p, p.type_a, p.m, p.k, p.stride_a);
    plan.c = layout(p, p.type_c, p.m, p.n, p.stride_c);
    if (takes_scales(p, plan.desc.get())) choose(p, plan);
    return plan;
  }

  /// Says how the scales lie. False: a library or a toolkit before 12.9 knows one for all alone.
  static bool takes_scales(const Product& p, cublasLtMatmulDesc_t desc) {
    if (p.scales_a == Scales::kOne && p.scales_b == Scales::kOne) return true;
#if CUBLAS_VERSION >= 120900
    const auto takes = [&](cublasLtMatmulDescAttributes_t attribute, Scales scales) {
      const std::int32_t mode = scales == Scales::kOne ? CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F
                                : scales == Scales::kOfRows
                                    ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                    : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
      return library()->desc_set(desc, attribute, &mode, sizeof mode) == CUBLAS_STATUS_SUCCESS;
    };
    return takes(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, p.scales_b) &&
           takes(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, p.scales_a);
#else
    (void)desc;
    return false;
#endif
  }

  static Desc describe(const Product& p) {
    cublasLtMatmulDesc_t desc = nullptr;
    check(p, "description", library()->desc_create(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    Desc owner(desc);
    const auto operation = [](bool transpose) {
      return static_cast<std::int32_t>(transpose ? CUBLAS_OP_T : CUBLAS_OP_N);
    };
    set(p, desc, CUBLASLT_MATMUL_DESC_TRANSA, operation(p.transpose_b));
    set(p, desc, CUBLASLT_MATMUL_DESC_TRANSB, operation(p.transpose_a));
    if (p.bias != nullptr) {
      set(p, desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
          static_cast<std::uint32_t>(CUBLASLT_EPILOGUE_BIAS));
      set(p, desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
          static_cast<std::int32_t>(type_of(p.type_c)));
    }
    if (p.fast_sums) set(p, desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
    set_pointers(p, desc);  // the choice looks at how a bias is aligned
    return owner;
  }

  void choose(const Product& p, Plan& plan) {
    const Library& lt = *library();
    cublasLtMatmulPreference_t raw = nullptr;
    check(p, "preference", lt.preference_create(&raw));
    const Preference preference(raw);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check(p, "preference", lt.preference_set(raw, attribute, &value, sizeof value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kWorkspaceBytes});
    // Parts of a sum stay in f32 and are added in one order, never rounded to bf16.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(p.c));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.c));
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status =
        lt.heuristic(handle_.get(), plan.desc.get(), plan.a.get(), plan.b.get(), plan.c.get(),
                     plan.c.get(), raw, 1, &result, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return;
    check(p, "choice of a kernel", status);
    if (found > 0 && result.state == CUBLAS_STATUS_SUCCESS) plan.algorithm = result.algo;
  }

  LtHandle handle_;
  std::map<Key, Plan> plans_;
};

Plans& plans() {
  thread_local Plans plans;  // one for each thread that calls ops, so that it needs no lock
  return plans;
}

}  // namespace

bool serves(const Product& product) {
  if (!library()) return false;
  // It has no layout of a matrix without elements.
  if (product.m == 0 || product.n == 0 || product.k == 0) return false;
  return plans().get(product).algorithm.has_value();
}

void multiply(const Exec& exec, const Product& p, void* workspace) {
  const Library& lt = *library();
  const Plan& plan = plans().get(p);
  set_pointers(p, plan.desc.get());
  const float one = 1, beta = p.accumulate ? 1 : 0;
  check(p, "product",
        lt.matmul(plans().handle(), plan.desc.get(), &one, p.b, plan.a.get(), p.a, plan.b.get(),
                  &beta, p.c, plan.c.get(), p.c, plan.c.get(), &*plan.algorithm, workspace,
                  kWorkspaceBytes, static_cast<cudaStream_t>(exec.stream)));
}

const char* missing() { return library() ? nullptr : opened().problem.c_str(); }

std::int64_t version() { return library() ? static_cast<std::int64_t>(library()->version()) : 0; }

}  // namespace trireme::cuda::cublaslt
