#include "plan/fp8_support.h"

#include "config/field_types.h"
#include "device/gpu_peak.h"
#include "kernels/gemm/gemm_quantized.h"
#include "kernels/grouped_gemm/grouped_gemm_quantized.h"
#include "model/param_table.h"

namespace trireme {

namespace {

bool has_experts_in_fp8(const ModelConfig& model, const Fp8Precision& precision) {
  const std::int64_t end = model.layer_count() - precision.bf16_layers[1];
  for (std::int64_t i = precision.bf16_layers[0]; i < end; ++i)
    if (model.layer(i).experts) return true;
  return false;
}

}  // namespace

std::optional<Fp8Gpu> fp8_gpu(std::string_view name) {
  const std::optional<int> capability = capability_of(name);
  if (!capability) return std::nullopt;
  const auto missing = [&](Fp8Recipe recipe) {
    return gemm_quantized_missing(*capability, fp8_block(recipe));
  };
  return Fp8Gpu{std::string(name), *capability, missing(Fp8Recipe::kTensor),
                missing(Fp8Recipe::kBlock), grouped_gemm_quantized_serves(*capability)};
}

std::string fp8_refusal(const Fp8Gpu& gpu, const ModelConfig& model,
                        const Fp8Precision& precision) {
  const bool experts = !gpu.experts && has_experts_in_fp8(model, precision);
  const bool tensor = precision.recipe == Fp8Recipe::kTensor;
  const std::string& own = tensor ? gpu.tensor_missing : gpu.block_missing;
  if (own.empty() && !experts) return "";
  const bool by_recipe = !tensor && gpu.tensor_missing.empty() && !experts;
  return fmt::format(
      "is \"fp8\" by the recipe \"{}\", which {} (compute capability {}.{}) cannot do: {}. Set {}",
      EnumWords<Fp8Recipe>::kWords[static_cast<std::size_t>(precision.recipe)], gpu.name,
      gpu.capability / 10, gpu.capability % 10,
      own.empty() ? "products of experts in fp8 have kernels for compute capability 9.0 alone"
                  : own,
      by_recipe ? "precision.fp8.recipe \"tensor\"" : "precision.compute \"bf16\"");
}

std::optional<Problem> fp8_fault(const RunConfig& config, const Cluster& cluster) {
  if (config.precision.compute != ComputePrecision::kFp8 || cluster.device.kind == DeviceKind::kCpu)
    return std::nullopt;
  const std::optional<Fp8Gpu> gpu = fp8_gpu(cluster.device.name);
  if (!gpu) return std::nullopt;
  Problem fault{"precision.compute", "\"fp8\"", "", "", "", "", ExitCode::kEnvironment};
  fault.message = fp8_refusal(*gpu, config.model, config.precision.fp8.value_or(Fp8Precision()));
  if (fault.message.empty()) return std::nullopt;
  return fault;
}

}  // namespace trireme
