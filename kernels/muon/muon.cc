#include "kernels/muon/muon.h"

#include <new>

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/muon/muon_table.h"

namespace trireme {
namespace {

const MuonKernels& kernels(const Context& context) {
  return choose_table("muon", context, muon_cpu, &GpuKernels::muon);
}

/// The views may differ in shape (rows of a rank beside a flat piece of a message), not in count.
void check_view(const ArgumentChecker& check, const char* name, const ConstTensorView& view,
                DType dtype, std::int64_t count) {
  check.tensor(name, view.count() == count ? view.reshape({count}) : view, dtype, {count});
}

/// Calls `kernel` for `count` tensors, which `plain_of(i)` describes but for their places.
template <class PlainOf>
void on_tensors(Context& context, std::size_t count, const PlainOf& plain_of, MuonArgs args,
                void (*MuonKernels::*kernel)(const MuonArgs&)) {
  const std::size_t table_bytes = count * sizeof(MuonTensorArgs);
  std::byte* table = context.host_scratch(table_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    MuonTensorArgs tensor = plain_of(i);
    tensor.begin = args.element_count;
    tensor.first_block = args.block_count;
    new (table + i * sizeof(MuonTensorArgs)) MuonTensorArgs(tensor);
    args.element_count += tensor.count;
    args.block_count += (tensor.count + kMuonElementsPerBlock - 1) / kMuonElementsPerBlock;
  }
  if (args.element_count == 0) return;
  const std::byte* device_table =
      context.on_gpu() ? context.device_constant({table, table_bytes}) : table;
  args.exec = context.exec();
  args.tensors = reinterpret_cast<const MuonTensorArgs*>(device_table);
  args.tensor_count = static_cast<std::int64_t>(count);
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
    check_view(check, "momentum", tensor.momentum, DType::kF32, count);
    check_view(check, "gradient", tensor.gradient, DType::kF32, count);
    if (tensor.update.given()) check_view(check, "update", tensor.update, args.update_type, count);
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
    check_view(check, "parameter", tensor.parameter, DType::kF32, count);
    check_view(check, "update", tensor.update, args.update_type, count);
    if (tensor.copy.given()) check_view(check, "copy", tensor.copy, DType::kBF16, count);
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
