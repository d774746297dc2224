// A base in NF4 in a store: on every rank, on those of the tensor axis and of ZeRO's stage 3 the
// codes and magnitudes are those of the whole tensors.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>

#include "kernels/nf4/nf4.h"
#include "store/base_values.h"
#include "store/weight_gather.h"
#include "support/store_contents.h"
#include "support/thread_ranks.h"

namespace trireme {
namespace {

ParamMeta meta_of(const std::string& name, const Shape& shape, int block) {
  ParamMeta meta;
  meta.name = name;
  meta.shape = shape;
  meta.block = block;
  return meta;
}

/// A layer of q and k behind each other, whose rows are two blocks, an MLP's matrix whose rows are
/// a block and a half, a norm and an adapter; before and behind it other blocks.
std::vector<ParamMeta> some_params(bool nf4) {
  std::vector<ParamMeta> params = {meta_of("embedding", {9, 64}, 0), meta_of("q", {10, 128}, 1),
                                   meta_of("k", {7, 128}, 1),        meta_of("down", {12, 96}, 1),
                                   meta_of("norm", {128}, 1),        meta_of("lora", {4, 96}, 1),
                                   meta_of("final", {33}, 2)};
  params[2].fuse = Fuse::kWithPrevious;
  for (ParamMeta& param : params) {
    param.base = param.name != "lora";
    param.trainable = !param.base;
    param.nf4 = nf4 && (param.name == "q" || param.name == "k" || param.name == "down");
  }
  return params;
}

float value_of(const std::string& name, std::int64_t element) {
  const auto name_part = static_cast<float>(name.size() * 13 + static_cast<unsigned>(name.back()));
  return std::sin(name_part + 0.37F * static_cast<float>(element));
}

void fill(const State& state) {
  for (const StateTensor& tensor : state.tensors) {
    const Box& box = tensor.box;
    const std::int64_t width = box.shape.rank() == 2 ? box.shape[1] : 1;
    for (std::int64_t i = 0; i < box.shape.count(); ++i) {
      const std::int64_t row = i / width, column = i % width;
      const std::int64_t element =
          (box.offset[0] + row) * (box.shape.rank() == 2 ? tensor.global_shape[1] : 1) +
          (box.shape.rank() == 2 ? box.offset[1] + column : 0);
      const float value = value_of(tensor.name, element);
      const std::int64_t stride = tensor.row_stride == 0 ? width : tensor.row_stride;
      std::memcpy(tensor.data + static_cast<std::size_t>(row * stride + column) * sizeof value,
                  &value, sizeof value);
    }
  }
}

/// What codes of the part of a whole tensor that a rank of the tensor axis has stand for.
std::vector<float> expected(Context& context, const ParamMeta& param, AxisRank tensor) {
  const Buffer values(DType::kF32, param.shape), codes(DType::kU8, nf4_codes_shape(param.shape)),
      absmax(DType::kF32, nf4_absmax_shape(param.shape));
  for (std::int64_t i = 0; i < param.shape.count(); ++i)
    values.view().as<float>()[i] = value_of("parameters/" + param.name, i);
  const Nf4View coded(codes.view(), absmax.view(), param.shape);
  nf4_quantize(context, coded, values.view());
  nf4_dequantize(context, values.view(), coded);
  const Shape local = local_shape(param.shape, param.cut, tensor);
  std::vector<float> mine(static_cast<std::size_t>(local.count()));
  for (const CutPart& part : local_parts(param.shape, param.cut, tensor)) {
    for (std::int64_t i = 0; i < part.box.shape.count(); ++i) {
      const std::int64_t row = i / part.box.shape[1], column = i % part.box.shape[1];
      mine[static_cast<std::size_t>((part.at[0] + row) * local[1] + part.at[1] + column)] =
          values.view().as<float>()[(part.box.offset[0] + row) * param.shape[1] +
                                    part.box.offset[1] + column];
    }
  }
  return mine;
}

std::vector<float> leased(Context& context, const ParamStore::Lease& lease, ParamRange range) {
  const ConstNf4View codes = lease.nf4(range);
  const Buffer values(DType::kF32, codes.shape);
  nf4_dequantize(context, values.view(), codes);
  const float* data = values.view().as<float>();
  return {data, data + codes.shape.count()};
}

void expect_whole(Context& context, const ParamStore& store, AxisRank tensor) {
  const std::vector<ParamMeta>& params = store.params();
  const auto of = [&](ParamIndex index) {
    return expected(context, params[static_cast<std::size_t>(index)], tensor);
  };
  { const auto before = store.acquire(0, 1); }
  const auto lease = store.acquire(1, 2);
  EXPECT_EQ(leased(context, lease, {1, 1}), of(1));
  EXPECT_EQ(leased(context, lease, {2, 2}), of(2));
  EXPECT_EQ(leased(context, lease, {3, 3}), of(3));
  std::vector<float> both = of(1);
  const std::vector<float> k = of(2);
  both.insert(both.end(), k.begin(), k.end());
  EXPECT_EQ(leased(context, lease, {1, 2}), both);
  const ConstTensorView norm = lease.weight(4);
  EXPECT_EQ(norm.dtype, store.compute());
  if (store.compute() == DType::kF32) {
    EXPECT_EQ(norm.as<float>()[100], value_of("parameters/norm", 100));
  }
}

/// In parts of that many bytes, or of one parameter.
void give_base(Context& context, ParamStore& store, std::int64_t bytes_at_once = 0) {
  BaseValues base(context, store, bytes_at_once);
  std::deque<QuantizedRefresh> none;
  std::size_t tensors = 0;
  for (int part = 0; part < base.parts(); ++part) {
    const State state = base.state(part);
    tensors += state.tensors.size();
    fill(state);
    base.give(none);
  }
  EXPECT_EQ(base.parts(), bytes_at_once == 1 ? static_cast<int>(tensors) : 1);
  EXPECT_EQ(tensors, store.base_state([](ParamIndex) { return nullptr; }).tensors.size());
  EXPECT_TRUE(base.state(base.parts()).tensors.empty());
}

TEST(Nf4Store, ranks_of_every_zero_stage_have_the_codes_of_whole_tensors) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const int ranks : {1, 2, 3}) {
        if (stage == 0 && ranks > 1) continue;
        SCOPED_TRACE(fmt::format("stage {}, {} ranks, {}", stage, ranks, name_of(compute)));
        on_threads(ranks, [&](Communicator& channel) {
          Context context({}, 1, detect_isa());
          const Distribution dense{{}, {ranks, channel.rank()}, {}};
          ParamStore store(some_params(true), compute, kTrainingStore, {},
                           dense_distribution(stage, dense));
          std::optional<WeightGather> gather;
          if (stage > 0)
            gather.emplace(context, store,
                           std::vector<WeightGather::Channel>{{MeshView::kDense, channel}});
          give_base(context, store, ranks == 2 ? 1 : 0);
          store.refresh_copies(context);
          for (int pass = 0; pass < 2; ++pass) {
            expect_whole(context, store, {});
            if (gather) gather->weights_changed();
          }
        });
      }
    }
  }
}

TEST(Nf4Store, ranks_of_the_tensor_axis_have_the_codes_of_whole_tensors) {
  std::vector<ParamMeta> params = some_params(true);
  params[1].cut = {0, {{10, 2}}};  // of rows: two heads
  params[2].cut = {1, {{128, 2}}};
  params[3].cut = {0, {{12, 2}}};
  for (int rank = 0; rank < 2; ++rank) {
    Context context({}, 1, detect_isa());
    ParamStore store(params, DType::kF32, kTrainingStore, {},
                     dense_distribution(0, {{2, rank}, {}, {}}));
    give_base(context, store);
    const auto lease = store.acquire(1);
    for (const ParamIndex index : {1, 2, 3}) {
      EXPECT_EQ(leased(context, lease, {index, index}),
                expected(context, params[static_cast<std::size_t>(index)], {2, rank}))
          << index;
    }
  }
}

TEST(Nf4Store, four_bits_and_a_half_a_weight_and_no_other_form) {
  constexpr std::int64_t kLayerBytes = (10 + 7) * 128 / 2 + 12 * 96 / 2,
                         kMagnitudes = ((10 + 7) * 128 + 12 * 96) / 64;
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const auto element = static_cast<std::int64_t>(size_of(compute));
    const std::int64_t nf4 =
        ParamStore::bytes_of(some_params(true), compute, kTrainingStore).parameters;
    const std::int64_t plain =
        ParamStore::bytes_of(some_params(false), compute, kTrainingStore).parameters;
    // Groups begin on 64 bytes; all are whole lines but the magnitudes, 34 and 18.
    const std::int64_t magnitudes = 4 * (round_up(34, 16) + round_up(18, 16));
    EXPECT_EQ(kMagnitudes, 34 + 18);
    EXPECT_EQ(plain - nf4, element * ((10 + 7) * 128 + 12 * 96) - kLayerBytes - magnitudes);
  }
}

TEST(Nf4Store, rows_that_cut_blocks_are_refused) {
  std::vector<ParamMeta> params = some_params(true);
  params[3].shape = {11, 96};
  const StoreLayout layout(params, dense_distribution(3, {{}, {2, 0}, {}}),
                           StoreLayout::Of::kNf4Weights);
  EXPECT_THROW((void)layout.sharded_tensors(1, MeshView::kDense), InternalError);
}

}  // namespace
}  // namespace trireme
