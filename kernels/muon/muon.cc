#include "kernels/muon/muon.h"

#include "base/math.h"
#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/common/tensor_table.h"
#include "kernels/muon/muon_table.h"

namespace trireme {
namespace {

const MuonKernels& kernels(const Context& context) {
  return choose_table("muon", context, muon_cpu, &GpuKernels::muon);
}

/// Calls `kernel` for `count` tensors, which `plain_of(i)` describes but for their places.
template <class PlainOf>
void on_tensors(Context& context, std::size_t count, const PlainOf& plain_of, MuonArgs args,
                void (*MuonKernels::*kernel)(const MuonArgs&)) {
  TensorTable<MuonTensorArgs> table(context, count);
  for (std::size_t i = 0; i < count; ++i) {
    MuonTensorArgs tensor = plain_of(i);
    tensor.begin = args.element_count;
    tensor.first_block = args.block_count;
    table.add(tensor);
    args.element_count += tensor.count;
    args.block_count += ceil_div(tensor.count, kMuonElementsPerBlock);
  }
  if (args.element_count == 0) return;
  args.exec = context.exec();
  args.tensors = table.placed();
  args.tensor_count = table.count();
  (kernels(context).*kernel)(args);
}

/// Of the first update that is given: all have one.
template <class Tensor>
DType update_type(const ArgumentChecker& check, std::span<const Tensor> tensors) {
  for (const Tensor& tensor : tensors) {
    if (!tensor.update.given()) continue;
    check.floating("update", tensor.update.dtype);
    return tensor.update.dtype;
  }
  return DType::kF32;
}

}  // namespace

void muon_momentum(Context& context, std::span<const MuonMomentumTensor> tensors, double momentum,
                   float gradient_scale) {
  OpWork work;
  for (const MuonMomentumTensor& each : tensors)
    work.bytes += bytes_of(each.momentum, each.momentum, each.gradient, each.update);
  const OpSpan span(context.op_trace(), "muon_momentum", work);
  const ArgumentChecker check("muon_momentum");
  MuonArgs args = {};
  args.update_type = update_type(check, tensors);
  args.momentum = static_cast<float>(momentum);
  args.one_minus_momentum = static_cast<float>(1 - momentum);
  args.gradient_scale = gradient_scale;
  const auto plain_of = [&](std::size_t i) {
    const MuonMomentumTensor& tensor = tensors[i];
    const std::int64_t count = tensor.momentum.count();
    check.elements("momentum", tensor.momentum, DType::kF32, count);
    check.elements("gradient", tensor.gradient, DType::kF32, count);
    if (tensor.update.given()) check.elements("update", tensor.update, args.update_type, count);
    MuonTensorArgs plain = {};
    plain.state = tensor.momentum.as<float>();
    plain.in = tensor.gradient.data;
    plain.out = tensor.update.data;
    plain.count = count;
    return plain;
  };
  on_tensors(context, tensors.size(), plain_of, args, &MuonKernels::momentum);
}

void muon_update(Context& context, std::span<const MuonUpdateTensor> tensors, double lr) {
  OpWork work;
  for (const MuonUpdateTensor& each : tensors)
    work.bytes += bytes_of(each.parameter, each.parameter, each.update, each.copy);
  const OpSpan span(context.op_trace(), "muon_update", work);
  const ArgumentChecker check("muon_update");
  MuonArgs args = {};
  args.update_type = update_type(check, tensors);
  args.lr = lr;
  const auto plain_of = [&](std::size_t i) {
    const MuonUpdateTensor& tensor = tensors[i];
    const std::int64_t count = tensor.parameter.count();
    check.elements("parameter", tensor.parameter, DType::kF32, count);
    check.elements("update", tensor.update, args.update_type, count);
    if (tensor.copy.given()) check.elements("copy", tensor.copy, DType::kBF16, count);
    MuonTensorArgs plain = {};
    plain.state = tensor.parameter.as<float>();
    plain.in = tensor.update.data;
    plain.out = tensor.copy.data;
    plain.count = count;
    plain.step = tensor.step;
    plain.decay = tensor.decay;
    return plain;
  };
  on_tensors(context, tensors.size(), plain_of, args, &MuonKernels::update);
}

void newton_schulz_operand(Context& context, TensorView operand, TensorView sum, float scale,
                           float factor) {
  const OpSpan span(context.op_trace(), "newton_schulz_operand", {0, bytes_of(operand, sum, sum)});
  const ArgumentChecker check("newton_schulz_operand");
  check.floating("operand", operand.dtype);
  check.tensor("sum", sum, DType::kF32, sum.shape);
  check.tensor("operand", operand, operand.dtype, sum.shape);
  check.disjoint("operand", operand, "sum", sum);
  if (sum.count() == 0) return;
  kernels(context).operand(
      {context.exec(), operand.data, sum.as<float>(), sum.count(), scale, factor, operand.dtype});
}

void newton_schulz_polynomial(Context& context, TensorView gram, ConstTensorView square,
                              float linear, float quadratic) {
  const OpSpan span(context.op_trace(), "newton_schulz_polynomial",
                    {0, bytes_of(gram, gram, square)});
  const ArgumentChecker check("newton_schulz_polynomial");
  check.floating("gram", gram.dtype);
  check.tensor("gram", gram, gram.dtype, gram.shape);
  check.tensor("square", square, DType::kF32, gram.shape);
  check.disjoint("gram", gram, "square", square);
  if (gram.count() == 0) return;
  kernels(context).polynomial(
      {context.exec(), gram.data, square.as<float>(), gram.count(), linear, quadratic, gram.dtype});
}

}  // namespace trireme
