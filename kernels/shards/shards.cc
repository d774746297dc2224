#include "kernels/shards/shards.h"

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"

namespace trireme {
namespace {

const ShardsKernels& table_of(const Context& context) {
  return choose_table("shards", context, shards_cpu, &GpuKernels::shards);
}

/// Of either direction: what is only read loses its const here alone.
ShardsArgs checked(const char* op, const Context& context, ConstTensorView shards_ON,
                   ConstTensorView local, const ShardPart& of) {
  const ArgumentChecker check(op);
  check.rank("shards", shards_ON, 2);
  if (size_of(local.dtype) != 1) check.floating("local", local.dtype);
  const std::int64_t here = shards_ON.shape[0];
  const ShardTable& table = of.table;
  const bool rounded = shards_ON.dtype == DType::kBF16 && local.dtype == DType::kF32;
  check.tensor("shards", shards_ON, rounded ? DType::kBF16 : local.dtype, {here, of.part.size});
  check.disjoint("shards", shards_ON, "local", local);
  expect(of.first_owner >= 0 && of.first_owner + here <= table.owners, "{}: owners {} to {} of {}",
         op, of.first_owner, of.first_owner + here, table.owners);
  return {context.exec(),
          const_cast<std::byte*>(shards_ON.data),
          const_cast<std::byte*>(local.data),
          table.tensors,
          table.count,
          table.owners,
          of.first_owner,
          here,
          of.part.begin,
          of.part.size,
          shards_ON.dtype,
          local.dtype};
}

}  // namespace

void pack_shards(Context& context, TensorView shards_ON, ConstTensorView local,
                 const ShardPart& of) {
  const OpSpan span(context.op_trace(), "pack_shards", {0, bytes_of(shards_ON, shards_ON)});
  const ShardsArgs args = checked("pack_shards", context, shards_ON, local, of);
  if (shards_ON.count() > 0) table_of(context).pack(args);
}

void unpack_shards(Context& context, TensorView local, ConstTensorView shards_ON,
                   const ShardPart& of) {
  const OpSpan span(context.op_trace(), "unpack_shards", {0, bytes_of(shards_ON, shards_ON)});
  const ShardsArgs args = checked("unpack_shards", context, shards_ON, local, of);
  if (shards_ON.count() > 0) table_of(context).unpack(args);
}

}  // namespace trireme
