#include "checkpoint/nf4_base.h"

#include <omp.h>

#include "config/adapters.h"
#include "kernels/nf4/nf4.h"
#include "parallel/cut.h"
#include "tensor/buffer.h"

namespace trireme {

std::set<std::string> nf4_weights(const ModelConfig& model) {
  std::set<std::string> names;
  for (const LinearModule& module : linear_modules(model))
    if (module.of_layer() && !module.of_experts) names.insert(module.name + ".weight");
  return names;
}

void round_to_nf4(std::span<float> x) {
  if (x.empty()) return;
  Context context({}, omp_get_max_threads(), detect_isa());
  const TensorView values = view_of(x.data(), {std::ssize(x)});
  const Buffer codes(DType::kU8, nf4_codes_shape(values.shape)),
      absmax(DType::kF32, nf4_absmax_shape(values.shape));
  const Nf4View rounded(codes.view(), absmax.view(), values.shape);
  nf4_quantize(context, rounded, values);
  nf4_dequantize(context, values, rounded);
}

void round_to_nf4(const ModelConfig& model, State& state) {
  constexpr std::string_view kPrefix = "parameters/";
  const std::set<std::string> names = nf4_weights(model);
  for (const StateTensor& tensor : state.tensors) {
    if (!names.contains(tensor.name.substr(kPrefix.size()))) continue;
    if (const auto at = cut_within_block(tensor.global_shape, tensor.box, kNf4Block)) {
      throw ConfigError(
          "{} {}: this mesh cuts it at element {}, within a block of {} that has one magnitude in "
          "NF4 (lora.base). Use fewer ranks",
          tensor.name, tensor.global_shape.text(), *at, kNf4Block);
    }
    round_to_nf4({reinterpret_cast<float*>(tensor.data),
                  static_cast<std::size_t>(tensor.box.shape.count())});
  }
}

}  // namespace trireme
