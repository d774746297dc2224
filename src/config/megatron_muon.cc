#include "config/megatron_muon.h"

namespace trireme {

namespace {

/// Of the length of an element's step, which Megatron-LM's "spectral" has as another factor.
constexpr double kScale = 0.2;

void convert_rate(const MegatronArguments& arguments, ConversionDraft& draft) {
  const std::string mode = arguments.text("--muon-scale-mode").value_or("spectral");
  const double extra = arguments.real("--muon-extra-scale-factor").value_or(1);
  const Json* lr = draft.find("optimizer.lr");
  if (mode != "spectral") {
    draft.remark(
        "--muon-scale-mode {}: optimizer.matrix_lr is left out, of which a matrix's step is 0.2 "
        "sqrt(max(rows, columns)) times here",
        mode);
  } else if (extra != kScale && lr != nullptr && lr->is_number()) {
    draft.set("optimizer.matrix_lr", lr->as_double() * extra / kScale,
              "--lr x --muon-extra-scale-factor / 0.2");
    draft.remark(
        "--weight-decay: that of matrices goes with optimizer.matrix_lr here, with --lr in "
        "Megatron-LM");
  }
}

}  // namespace

void convert_megatron_muon(const MegatronArguments& arguments, ConversionDraft& draft) {
  draft.set("optimizer.kind", "muon", "--optimizer");
  convert_rate(arguments, draft);
  const double momentum = arguments.real("--muon-momentum").value_or(0.9);
  if (momentum != 0.95) draft.remark("--muon-momentum {}: it is 0.95 here", momentum);
  if (!arguments.has("--muon-use-nesterov") && !arguments.has("--muon-nesterov"))
    draft.remark("no --muon-use-nesterov: the momentum is Nesterov's here");
  const std::int64_t steps = arguments.whole("--muon-num-ns-steps").value_or(5);
  if (steps != 5) draft.remark("--muon-num-ns-steps {}: they are 5 here", steps);
  const std::string coefficients = arguments.text("--muon-coefficient-type").value_or("quintic");
  if (coefficients != "quintic")
    draft.remark("--muon-coefficient-type {}: they are PyTorch's quintic here", coefficients);
  const std::string tensor = arguments.text("--muon-tp-mode").value_or("blockwise");
  if (tensor == "blockwise" && arguments.whole("--tensor-model-parallel-size").value_or(1) > 1) {
    draft.remark(
        "--muon-tp-mode blockwise: matrices are orthogonalised whole here, whatever the tensor "
        "axis");
  }
  if (arguments.has("--muon-no-split-qkv"))
    draft.remark("--muon-no-split-qkv: q, k and v are matrices of their own here");
  const std::string others = arguments.text("--muon-scalar-optimizer").value_or("adam");
  if (others != "adam")
    draft.remark("--muon-scalar-optimizer {}: what is no matrix has AdamW here", others);
}

}  // namespace trireme
