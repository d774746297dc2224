// gemm in its uses: the three products of each linear layer and of the head.

#include <algorithm>

#include "bench/op_bench.h"
#include "kernels/gemm/gemm.h"

namespace trireme::bench {
namespace {

/// Input and output features.
using SizeOf = std::function<std::pair<std::int64_t, std::int64_t>(const Size&)>;

/// y [T, N] = x [T, K] W^T, W [N, K], and its gradients. The head works on chunks of rows, and its
/// logits are fp32.
void add_linear(const std::string& name, bool head, const SizeOf& size_of) {
  const auto rows_of = [head](const Size& size) {
    return head ? std::min<std::int64_t>(size.rows(), 512) : size.rows();
  };
  add_op("gemm_" + name + "_forward", kBothTypes, [=](Operands& operands) {
    const auto [in, out] = size_of(operands.size);
    const std::int64_t rows = rows_of(operands.size);
    Gemm args;
    args.c_MN = head ? operands.f32({rows, out}) : operands.typed({rows, out});
    args.a = operands.typed({rows, in});
    args.b = operands.typed({out, in});
    args.transpose_b = Transpose::kYes;
    return [args](Context& context) { gemm(context, args); };
  });
  add_op("gemm_" + name + "_input_gradient", kBothTypes, [=](Operands& operands) {
    const auto [in, out] = size_of(operands.size);
    const std::int64_t rows = rows_of(operands.size);
    Gemm args;
    args.c_MN = operands.typed({rows, in});
    args.a = operands.typed({rows, out});
    args.b = operands.typed({out, in});
    return [args](Context& context) { gemm(context, args); };
  });
  add_op("gemm_" + name + "_weight_gradient", kBothTypes, [=](Operands& operands) {
    const auto [in, out] = size_of(operands.size);
    const std::int64_t rows = rows_of(operands.size);
    Gemm args;
    args.c_MN = operands.f32({out, in});
    args.a = operands.typed({rows, out});
    args.b = operands.typed({rows, in});
    args.transpose_a = Transpose::kYes;
    return [args](Context& context) { gemm(context, args); };
  });
}

}  // namespace

void add_products() {
  add_linear("qkv", false, [](const Size& size) { return std::pair(size.hidden, size.qkv()); });
  add_linear("out", false, [](const Size& size) { return std::pair(size.hidden, size.hidden); });
  add_linear("up", false, [](const Size& size) { return std::pair(size.hidden, 2 * size.ffn); });
  add_linear("down", false, [](const Size& size) { return std::pair(size.ffn, size.hidden); });
  add_linear("head", true, [](const Size& size) { return std::pair(size.hidden, size.vocab); });
}

}  // namespace trireme::bench
