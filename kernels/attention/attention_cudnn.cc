// The only file that sees cuDNN, found at run time: attention by our own kernels needs none.
//
// Tests make every plan for described GPUs (attention_cudnn_test).
#include <cudnn.h>
#include <dlfcn.h>

#include <limits>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/unique_handle.h"
#include "kernels/attention/attention_library_table.h"

namespace trireme::cuda {
namespace {

/// Before it some lengths of sequences needed a mask of their own, and 9.10 had wrong results.
constexpr std::size_t kVersionMin = 91600;

/// What is used of its interface.
struct Library {
  decltype(&cudnnGetVersion) version;
  decltype(&cudnnGetErrorString) error_string;
  decltype(&cudnnGetLastErrorString) last_error;
  decltype(&cudnnCreate) create;
  decltype(&cudnnDestroy) destroy;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&cudnnBackendSetAttribute) set;
  decltype(&cudnnBackendGetAttribute) get;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendExecute) execute;
};

struct Opened {
  std::optional<Library> library;
  std::string problem;  ///< why there is none
};

Opened open_library() {
  const std::string name = "libcudnn.so." + std::to_string(CUDNN_MAJOR);
  void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return {std::nullopt, ::dlerror()};
  Library dnn{};
  std::string problem;
  const auto take = [&](const char* symbol, auto& function) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, symbol));
    if (function == nullptr) problem = name + " has no " + symbol;
  };
  take("cudnnGetVersion", dnn.version);
  take("cudnnGetErrorString", dnn.error_string);
  take("cudnnGetLastErrorString", dnn.last_error);
  take("cudnnCreate", dnn.create);
  take("cudnnDestroy", dnn.destroy);
  take("cudnnSetStream", dnn.set_stream);
  take("cudnnBackendCreateDescriptor", dnn.create_descriptor);
  take("cudnnBackendDestroyDescriptor", dnn.destroy_descriptor);
  take("cudnnBackendSetAttribute", dnn.set);
  take("cudnnBackendGetAttribute", dnn.get);
  take("cudnnBackendFinalize", dnn.finalize);
  take("cudnnBackendExecute", dnn.execute);
  if (!problem.empty()) return {std::nullopt, problem};
  if (dnn.version() < kVersionMin) {
    return {std::nullopt, fmt::format("{} is version {}, at least {} is wanted", name,
                                      dnn.version(), kVersionMin)};
  }
  return {dnn, ""};
}

const Opened& opened() {
  static const Opened opened = open_library();
  return opened;
}
const Library& library() {
  if (!opened().library) throw EnvironmentError("cuDNN: {}", opened().problem);
  return *opened().library;
}

struct HandleTraits {
  using Raw = cudnnHandle_t;
  static Raw null() { return nullptr; }
  static void destroy(Raw raw) noexcept { library().destroy(raw); }
};
using DnnHandle = UniqueHandle<HandleTraits>;
struct DescriptorTraits {
  using Raw = cudnnBackendDescriptor_t;
  static Raw null() { return nullptr; }
  static void destroy(Raw raw) noexcept { library().destroy_descriptor(raw); }
};

void check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> more{};
  library().last_error(more.data(), more.size());
  throw EnvironmentError("attention: cuDNN's {} fails: {} ({})", what,
                         library().error_string(status), more.data());
}

/// A descriptor of cuDNN's graph interface while it is filled in, and after.
class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(cudnnBackendDescriptorType_t type, const char* what) : what_(what) {
    cudnnBackendDescriptor_t raw = nullptr;
    check(library().create_descriptor(type, &raw), what_);
    handle_ = UniqueHandle<DescriptorTraits>(raw);
  }
  [[nodiscard]] cudnnBackendDescriptor_t get() const { return handle_.get(); }

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::size_t count,
           const void* values) {
    check(library().set(get(), name, type, static_cast<std::int64_t>(count), values), what_);
  }
  void set(cudnnBackendAttributeName_t name, std::int64_t value) {
    set(name, CUDNN_TYPE_INT64, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, bool value) {
    set(name, CUDNN_TYPE_BOOLEAN, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
    set(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    const cudnnBackendDescriptor_t raw = value.get();
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
  }
  void finalize() { check(library().finalize(get()), what_); }
  [[nodiscard]] bool try_finalize() { return library().finalize(get()) == CUDNN_STATUS_SUCCESS; }
  /// Up to `count` values; how many there are.
  std::int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                   std::size_t count, void* values) const {
    std::int64_t found = 0;
    check(library().get(get(), name, type, static_cast<std::int64_t>(count), &found, values),
          what_);
    return found;
  }

 private:
  UniqueHandle<DescriptorTraits> handle_;
  const char* what_ = "";
};

cudnnDataType_t type_of(GraphTensor::Type type) {
  switch (type) {
    case GraphTensor::Type::kBF16:
      return CUDNN_DATA_BFLOAT16;
    case GraphTensor::Type::kI32:
      return CUDNN_DATA_INT32;
    case GraphTensor::Type::kBool:
      return CUDNN_DATA_BOOLEAN;
    case GraphTensor::Type::kF32:
      break;
  }
  return CUDNN_DATA_FLOAT;
}

Descriptor tensor_descriptor(const GraphTensor& tensor) {
  constexpr std::int64_t kAlignment = 16;
  Descriptor descriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor");
  descriptor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, tensor.id);
  descriptor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type_of(tensor.type));
  descriptor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, tensor.dims.data());
  descriptor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, tensor.strides.data());
  descriptor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignment);
  if (tensor.storage == GraphTensor::Storage::kVirtual)
    descriptor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
  if (tensor.storage == GraphTensor::Storage::kByValue)
    descriptor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, true);
  descriptor.finalize();
  return descriptor;
}

std::optional<cudnnPointwiseMode_t> pointwise_mode(GraphOperation::Kind kind) {
  using Kind = GraphOperation::Kind;
  switch (kind) {
    case Kind::kMultiply:
      return CUDNN_POINTWISE_MUL;
    case Kind::kSubtract:
      return CUDNN_POINTWISE_SUB;
    case Kind::kAdd:
      return CUDNN_POINTWISE_ADD;
    case Kind::kDivide:
      return CUDNN_POINTWISE_DIV;
    case Kind::kExp:
      return CUDNN_POINTWISE_EXP;
    case Kind::kLog:
      return CUDNN_POINTWISE_LOG;
    case Kind::kCopy:
      return CUDNN_POINTWISE_IDENTITY;
    case Kind::kRowIndex:
    case Kind::kColumnIndex:
      return CUDNN_POINTWISE_GEN_INDEX;
    case Kind::kNotBelow:
      return CUDNN_POINTWISE_CMP_GE;
    case Kind::kSelect:
      return CUDNN_POINTWISE_BINARY_SELECT;
    case Kind::kProduct:
    case Kind::kMaximum:
    case Kind::kSum:
    case Kind::kView:
      break;
  }
  return std::nullopt;
}

/// The graph in cuDNN's words. With a handle for the GPU that it means, else for any.
class GraphDescriptor {
 public:
  GraphDescriptor(const AttentionGraph& graph, cudnnHandle_t handle)
      : set_(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "graph") {
    for (const GraphTensor& tensor : graph.tensors) tensors_.push_back(tensor_descriptor(tensor));
    for (const GraphOperation& operation : graph.operations) add(operation);
    std::vector<cudnnBackendDescriptor_t> raw;
    for (const Descriptor& operation : operations_) raw.push_back(operation.get());
    set_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.size(), raw.data());
    if (handle != nullptr)
      set_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set_.finalize();
  }
  [[nodiscard]] const Descriptor& get() const { return set_; }

 private:
  [[nodiscard]] const Descriptor& at(int index) const {
    return tensors_[static_cast<std::size_t>(index)];
  }
  void add(const GraphOperation& operation) {
    using Kind = GraphOperation::Kind;
    if (operation.kind == Kind::kProduct) return add_product(operation);
    if (operation.kind == Kind::kView) return add_view(operation);
    if (operation.kind == Kind::kSum || operation.kind == Kind::kMaximum)
      return add_reduction(operation);
    add_pointwise(operation);
  }
  void add_product(const GraphOperation& operation) {
    Descriptor how(CUDNN_BACKEND_MATMUL_DESCRIPTOR, "product");
    how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    how.finalize();
    Descriptor descriptor(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "product");
    descriptor.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    descriptor.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, at(operation.x));
    descriptor.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, at(operation.y));
    descriptor.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, at(operation.out));
    keep(std::move(descriptor), std::move(how));
  }
  void add_reduction(const GraphOperation& operation) {
    Descriptor how(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "sum");
    const cudnnReduceTensorOp_t kind = operation.kind == GraphOperation::Kind::kSum
                                           ? CUDNN_REDUCE_TENSOR_ADD
                                           : CUDNN_REDUCE_TENSOR_MAX;
    how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &kind);
    how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    how.finalize();
    Descriptor descriptor(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "sum");
    descriptor.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    descriptor.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, at(operation.x));
    descriptor.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, at(operation.out));
    keep(std::move(descriptor), std::move(how));
  }
  void add_pointwise(const GraphOperation& operation) {
    using Kind = GraphOperation::Kind;
    Descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "elementwise operation");
    const cudnnPointwiseMode_t mode = pointwise_mode(operation.kind).value();
    how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    how.set(CUDNN_ATTR_POINTWISE_MATH_PREC,
            operation.kind == Kind::kNotBelow ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT);
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
      how.set(CUDNN_ATTR_POINTWISE_AXIS, std::int64_t{operation.kind == Kind::kRowIndex ? 2 : 3});
    how.finalize();
    Descriptor descriptor(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "elementwise operation");
    descriptor.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    descriptor.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(operation.x));
    if (operation.y >= 0) descriptor.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(operation.y));
    if (operation.condition >= 0)
      descriptor.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, at(operation.condition));
    descriptor.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(operation.out));
    keep(std::move(descriptor), std::move(how));
  }
  void add_view(const GraphOperation& operation) {
    Descriptor descriptor(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "view");
    descriptor.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, at(operation.x));
    descriptor.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, at(operation.out));
    keep(std::move(descriptor), {});
  }
  void keep(Descriptor operation, Descriptor how) {
    operation.finalize();
    operations_.push_back(std::move(operation));
    hows_.push_back(std::move(how));
  }

  std::vector<Descriptor> tensors_, hows_, operations_;
  Descriptor set_;
};

/// Whether the engine of this configuration may give other bits from run to run.
bool may_vary(const Descriptor& config) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "engine");
  cudnnBackendDescriptor_t raw = engine.get();
  config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  const std::int64_t count = engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                        notes.size(), notes.data());
  for (std::int64_t i = 0; i < count; ++i)
    if (notes[static_cast<std::size_t>(i)] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return true;
  return false;
}

struct Plan {
  Descriptor plan;
  std::size_t workspace_bytes = 0;
  std::vector<std::int64_t> ids;  ///< of the tensors outside
};

/// For the GPU of the handle, or one that `device` describes.
struct Target {
  cudnnHandle_t handle = nullptr;
  const Descriptor* device = nullptr;
};

/// The first of cuDNN's suggestions that it can make a plan of.
Plan make_plan(const AttentionLayout& shape, LibraryPass pass, const Target& target) {
  const AttentionGraph graph = attention_graph(shape, pass);
  const GraphDescriptor operations(graph, target.handle);
  const bool deterministic = pass == LibraryPass::kForward || shape.deterministic;
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    Descriptor suggestions(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "choice of a kernel");
    suggestions.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations.get());
    suggestions.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (target.device != nullptr) suggestions.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.device);
    if (!suggestions.try_finalize()) continue;
    const std::int64_t count =
        suggestions.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
    std::vector<Descriptor> configs;
    std::vector<cudnnBackendDescriptor_t> raw;
    for (std::int64_t i = 0; i < count; ++i) {
      configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "kernel");
      raw.push_back(configs.back().get());
    }
    // At most as many as were said before.
    const std::int64_t found = suggestions.get(
        CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.size(), raw.data());
    configs.resize(static_cast<std::size_t>(found));
    for (const Descriptor& config : configs) {
      if (deterministic && may_vary(config)) continue;
      Plan plan{{CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "plan"}, 0, {}};
      if (target.handle != nullptr)
        plan.plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
      plan.plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
      if (!plan.plan.try_finalize()) continue;
      std::int64_t bytes = 0;
      plan.plan.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes);
      plan.workspace_bytes = static_cast<std::size_t>(bytes);
      for (const GraphTensor& tensor : graph.tensors)
        if (tensor.storage != GraphTensor::Storage::kVirtual) plan.ids.push_back(tensor.id);
      return plan;
    }
  }
  throw EnvironmentError(
      "cuDNN {} has no {}kernel for the {} pass of attention over {} tokens with {} query and {} "
      "KV heads of {} (values of {}) on this GPU. Set model_backend.attention to \"own\"",
      library().version(), deterministic ? "deterministic " : "",
      pass == LibraryPass::kForward ? "forward" : "backward", shape.tokens, shape.heads,
      shape.kv_heads, shape.head_dim, shape.value_dim);
}

class Plans {
 public:
  /// A memo: a plan takes seconds.
  const Plan& get(const AttentionLayout& shape, LibraryPass pass) {
    const std::pair key(shape, pass);
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
    return plans_.emplace(key, make_plan(shape, pass, {handle(), nullptr})).first->second;
  }
  cudnnHandle_t handle() {
    if (!handle_) {
      cudnnHandle_t raw = nullptr;
      check(library().create(&raw), "start");
      handle_ = DnnHandle(raw);
    }
    return handle_.get();
  }

 private:
  DnnHandle handle_;
  std::map<std::pair<AttentionLayout, LibraryPass>, Plan> plans_;
};

Plans& plans() {
  thread_local Plans plans;  // one for each thread that calls ops, so that it needs no lock
  return plans;
}

std::size_t workspace_bytes(const AttentionLayout& shape, LibraryPass pass) {
  return plans().get(shape, pass).workspace_bytes;
}

void run(const AttentionLibraryCall& call) {
  const Plan& plan = plans().get(call.shape, call.pass);
  float scale = call.scale, minus_infinity = -std::numeric_limits<float>::infinity(), one = 1;
  std::vector<void*> pointers;
  for (const std::int64_t id : plan.ids) {
    const auto tensor = static_cast<LibraryTensor>(id);
    void* const given = call.memory[static_cast<std::size_t>(id)];
    pointers.push_back(tensor == LibraryTensor::kScale           ? &scale
                       : tensor == LibraryTensor::kMinusInfinity ? &minus_infinity
                       : tensor == LibraryTensor::kOne           ? &one
                                                                 : given);
  }
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "call");
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, plan.ids.size(), plan.ids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers.size(),
           pointers.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &call.workspace);
  pack.finalize();
  const cudnnHandle_t handle = plans().handle();
  check(library().set_stream(handle, static_cast<cudaStream_t>(call.exec.stream)), "stream");
  check(library().execute(handle, plan.plan.get(), pack.get()), "attention");
}

const char* missing() { return opened().library ? nullptr : opened().problem.c_str(); }

std::int64_t version() {
  return opened().library ? static_cast<std::int64_t>(library().version()) : 0;
}

}  // namespace

const AttentionLibraryKernels attention_cudnn = {missing, version, workspace_bytes, run};

std::size_t attention_cudnn_planned_bytes(const AttentionLayout& shape, LibraryPass pass,
                                          std::string_view device_json) {
  Descriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, "device");
  device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, device_json.size(),
             device_json.data());
  device.finalize();
  return make_plan(shape, pass, {nullptr, &device}).workspace_bytes;
}

}  // namespace trireme::cuda
