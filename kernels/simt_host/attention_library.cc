// What stands for cuDNN's attention where GPUs are executed on the host: the graph that cuDNN would
// get, run operation by operation in double, reading and writing memory as its tensors say. So the
// op around it, its layouts and scratch memory are executed; cuDNN is not.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/attention/attention_library_table.h"
#include "kernels/simt_host/streams.h"

namespace trireme {
namespace {

using Dims = std::array<std::int64_t, 4>;
using Kind = GraphOperation::Kind;
using Storage = GraphTensor::Storage;
using Type = GraphTensor::Type;

std::int64_t extent(const GraphTensor& tensor) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < 4; ++i) last += (tensor.dims[i] - 1) * tensor.strides[i];
  return last + 1;
}

template <class Call>
void for_each_index(const Dims& dims, const Call& call) {
  Dims i{};
  for (i[0] = 0; i[0] < dims[0]; ++i[0])
    for (i[1] = 0; i[1] < dims[1]; ++i[1])
      for (i[2] = 0; i[2] < dims[2]; ++i[2])
        for (i[3] = 0; i[3] < dims[3]; ++i[3]) call(i);
}

class Interpreter {
 public:
  explicit Interpreter(const AttentionLibraryCall& call)
      : call_(call),
        graph_(attention_graph(call.shape, call.pass)),
        inside_(graph_.tensors.size()) {}

  /// Refuses a tensor read before it was made, made twice or never, and memory of no device.
  void run() {
    for (const GraphOperation& operation : graph_.operations) run(operation);
    for (std::size_t i = 0; i < graph_.tensors.size(); ++i)
      expect(graph_.tensors[i].storage != Storage::kVirtual || !inside_[i].empty(),
             "tensor {} is made by nothing", i);
  }

 private:
  [[nodiscard]] const GraphTensor& tensor(int index) const {
    return graph_.tensors[static_cast<std::size_t>(index)];
  }
  static std::int64_t offset(const GraphTensor& tensor, const Dims& index) {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < 4; ++i) sum += index[i] * tensor.strides[i];
    return sum;
  }
  /// The element at that place; a smaller dim is repeated, or shared by neighbours.
  [[nodiscard]] double read(int index, const Dims& of, const Dims& dims) const {
    const GraphTensor& from = tensor(index);
    Dims at{};
    for (std::size_t i = 0; i < 4; ++i) {
      expect(dims[i] % from.dims[i] == 0, "dim {} of tensor {}: {} of {}", i, index, from.dims[i],
             dims[i]);
      at[i] = of[i] * from.dims[i] / dims[i];
    }
    return read_at(index, offset(from, at));
  }
  [[nodiscard]] double read_at(int index, std::int64_t offset) const {
    const GraphTensor& from = tensor(index);
    if (from.storage == Storage::kByValue) {
      switch (static_cast<LibraryTensor>(from.id)) {
        case LibraryTensor::kScale:
          return call_.scale;
        case LibraryTensor::kMinusInfinity:
          return -std::numeric_limits<double>::infinity();
        default:
          return 1;
      }
    }
    if (from.storage == Storage::kVirtual) {
      const auto& values = inside_[static_cast<std::size_t>(index)];
      expect(!values.empty(), "tensor {} is read before it is made", index);
      return values[static_cast<std::size_t>(offset)];
    }
    const void* memory = call_.memory[static_cast<std::size_t>(from.id)];
    expect(memory != nullptr, "no memory for tensor {}", from.id);
    const std::size_t bytes = from.type == Type::kBF16 ? 2 : 4;
    simt::device_check_range(
        static_cast<const char*>(memory) + offset * static_cast<std::int64_t>(bytes), bytes,
        "a library's operand");
    return from.type == Type::kBF16 ? to_float(static_cast<const BFloat16*>(memory)[offset])
                                    : static_cast<const float*>(memory)[offset];
  }
  void write(int index, const Dims& at, double value) {
    write_at(index, offset(tensor(index), at), value);
  }
  void write_at(int index, std::int64_t offset, double value) {
    const GraphTensor& to = tensor(index);
    if (to.storage == Storage::kVirtual) {
      auto& values = inside_[static_cast<std::size_t>(index)];
      if (values.empty()) values.resize(static_cast<std::size_t>(extent(to)));
      values[static_cast<std::size_t>(offset)] =
          to.type == Type::kBF16 ? to_float(to_bfloat16(static_cast<float>(value))) : value;
      return;
    }
    void* memory = call_.memory[static_cast<std::size_t>(to.id)];
    expect(memory != nullptr && to.storage == Storage::kMemory, "no memory for tensor {}", to.id);
    const std::size_t bytes = to.type == Type::kBF16 ? 2 : 4;
    char* const place = static_cast<char*>(memory) + offset * static_cast<std::int64_t>(bytes);
    simt::device_check_range(place, bytes, "a library's result");
    simt::device_mark_initialised(place, bytes);
    if (to.type == Type::kBF16) {
      static_cast<BFloat16*>(memory)[offset] = to_bfloat16(static_cast<float>(value));
    } else {
      static_cast<float*>(memory)[offset] = static_cast<float>(value);
    }
  }

  void run(const GraphOperation& operation) {
    const auto out = static_cast<std::size_t>(operation.out);
    expect(tensor(operation.out).storage != Storage::kVirtual || inside_[out].empty(),
           "tensor {} is made twice", out);
    if (operation.kind == Kind::kProduct) return product(operation);
    if (operation.kind == Kind::kSum || operation.kind == Kind::kMaximum) return reduce(operation);
    if (operation.kind == Kind::kView) {
      const GraphTensor& to = tensor(operation.out);
      for_each_index(to.dims, [&](const Dims& i) {
        write(operation.out, i, read_at(operation.x, offset(to, i)));
      });
      return;
    }
    elementwise(operation);
  }

  void product(const GraphOperation& operation) {
    const Dims &dims = tensor(operation.out).dims, &x = tensor(operation.x).dims,
               &y = tensor(operation.y).dims;
    expect(x[2] == dims[2] && y[3] == dims[3] && x[3] == y[2], "sides of a product: {}x{}, {}x{}",
           x[2], x[3], y[2], y[3]);
    for_each_index(dims, [&](const Dims& i) {
      double sum = 0;
      for (std::int64_t k = 0; k < x[3]; ++k) {
        sum += read(operation.x, {i[0], i[1], i[2], k}, {dims[0], dims[1], dims[2], x[3]}) *
               read(operation.y, {i[0], i[1], k, i[3]}, {dims[0], dims[1], x[3], dims[3]});
      }
      write(operation.out, i, sum);
    });
  }

  void reduce(const GraphOperation& operation) {
    const GraphTensor& to = tensor(operation.out);
    const Dims& dims = tensor(operation.x).dims;
    const bool sum = operation.kind == Kind::kSum;
    std::vector<double> values(static_cast<std::size_t>(extent(to)),
                               sum ? 0 : -std::numeric_limits<double>::infinity());
    const auto place = [&](const Dims& i) {
      Dims at{};
      for (std::size_t d = 0; d < 4; ++d) at[d] = i[d] * to.dims[d] / dims[d];
      return at;
    };
    for_each_index(dims, [&](const Dims& i) {
      double& value = values[static_cast<std::size_t>(offset(to, place(i)))];
      const double x = read(operation.x, i, dims);
      value = sum ? value + x : std::max(value, x);
    });
    for_each_index(to.dims, [&](const Dims& i) {
      write(operation.out, i, values[static_cast<std::size_t>(offset(to, i))]);
    });
  }

  void elementwise(const GraphOperation& operation) {
    const Dims& dims = tensor(operation.out).dims;
    for_each_index(dims, [&](const Dims& i) {
      const auto x = [&] { return read(operation.x, i, dims); };
      const auto y = [&] { return read(operation.y, i, dims); };
      write(operation.out, i, [&] {
        switch (operation.kind) {
          case Kind::kMultiply:
            return x() * y();
          case Kind::kSubtract:
            return x() - y();
          case Kind::kAdd:
            return x() + y();
          case Kind::kDivide:
            return x() / y();
          case Kind::kExp:
            return std::exp(x());
          case Kind::kLog:
            return std::log(x());
          case Kind::kCopy:
            return x();
          case Kind::kRowIndex:
            return static_cast<double>(i[2]);
          case Kind::kColumnIndex:
            return static_cast<double>(i[3]);
          case Kind::kNotBelow:
            return x() >= y() ? 1.0 : 0.0;
          case Kind::kSelect:
            return read(operation.condition, i, dims) != 0 ? x() : y();
          default:
            throw InternalError("not an elementwise operation");
        }
      }());
    });
  }

  const AttentionLibraryCall& call_;
  const AttentionGraph graph_;
  std::vector<std::vector<double>> inside_;
};

/// Some bytes, of which the last ones must be there too.
constexpr std::size_t kWorkspaceBytes = 777;
std::size_t workspace_bytes(const AttentionLayout&, LibraryPass) { return kWorkspaceBytes; }

void run(const AttentionLibraryCall& call) {
  simt::enqueue(static_cast<cudaStream_t>(call.exec.stream), [call] {
    simt::device_check_range(call.workspace, kWorkspaceBytes, "a library's workspace");
    std::memset(call.workspace, 0xff, kWorkspaceBytes);
    Interpreter(call).run();
  });
}

/// TRIREME_SIMT_CUDNN=none: a machine without it.
const char* missing() {
  const char* const setting = std::getenv("TRIREME_SIMT_CUDNN");
  return setting != nullptr && std::strcmp(setting, "none") == 0 ? "libcudnn.so.9: cannot open"
                                                                 : nullptr;
}
std::int64_t version() { return 1; }

}  // namespace

const AttentionLibraryKernels cuda::attention_cudnn = {missing, version, workspace_bytes, run};

}  // namespace trireme
