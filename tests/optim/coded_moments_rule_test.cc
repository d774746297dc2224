#include "optim/coded_moments_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "support/thread_ranks.h"

namespace trireme {
namespace {

constexpr int kSteps = 3;

/// Matrices that cuts cross, and others; vectors; one of an embedding's rows. Two are too small for
/// moments in 8 bits.
std::vector<ParamMeta> some_params() {
  const ParamInit normal{InitKind::kNormal, 1};
  std::vector<ParamMeta> params(7);
  params[0] = {"embedding", {301, 40}, normal, true, 0, Fuse::kNo};
  params[0].cut = {0, {{301, 301}}};
  params[1] = {"norm", {96}, normal, false, 1, Fuse::kNo};
  params[2] = {"wide", {96, 160}, normal, true, 1, Fuse::kNo};
  params[2].cut = {0, {{96, 6}}};
  params[3] = {"parts", {80, 576}, normal, true, 1, Fuse::kNo};
  params[3].cut = {1, {{384, 12}, {192, 12}}};
  params[4] = {"blocks", {12, 1536}, normal, true, 1, Fuse::kNo};
  params[4].cut = {1, {{1536, 6}}};
  params[5] = {"small", {63, 65}, normal, true, 1, Fuse::kNo};
  params[6] = {"long", {5003}, normal, false, 1, Fuse::kNo};
  return params;
}

RunConfig::Optimizer config_of(OptimizerKind kind) {
  RunConfig::Optimizer config;
  config.kind = kind;
  config.state = MomentType::k8bit;
  return config;
}

/// Of a step, at each element that this rank owns: a function of the element of the whole.
void set_gradients(const ParamStore& store, int step) {
  for (ParamIndex i = 0; i < std::ssize(store.params()); ++i) {
    const ParamMeta& param = store.params()[static_cast<std::size_t>(i)];
    const TensorView gradient = store.gradients().owned(i);
    const bool matrix = param.shape.rank() == 2;
    const std::int64_t columns = matrix ? param.shape[1] : 1;
    const StoreLayout& layout = store.gradients().layout();
    const std::int64_t local = matrix ? layout.local_shape(i)[1] : 1;
    for (const CutPart& part : rows_of_parts(
             local_parts(param.shape, param.cut, layout.distribution(i).tensor), layout.owned(i))) {
      for (std::int64_t r = 0; r < part.box.shape[0]; ++r) {
        for (std::int64_t c = 0; c < (matrix ? part.box.shape[1] : 1); ++c) {
          const std::int64_t element =
              (part.box.offset[0] + r) * columns + (matrix ? part.box.offset[1] : 0) + c;
          const std::int64_t mixed = (element * 7919 + step * 104729 + i) % 2003;
          gradient.as<float>()[(part.at[0] + r) * local + (matrix ? part.at[1] : 0) + c] =
              static_cast<float>(mixed - 1001) * 1e-4F / static_cast<float>(1 + element % 17);
        }
      }
    }
  }
}

void make_steps(Context& context, const ParamStore& store, Optimizer& optimizer, int steps) {
  for (int step = 0; step < steps; ++step) {
    set_gradients(store, step);
    optimizer.step(context, 1e-2, 0.5);
  }
}

using Tensors = std::map<std::string, std::string>;

/// f(memory, where that begins in the whole tensor, bytes) for each row of what a rank has.
template <class F>
void for_each_row(const StateTensor& tensor, const F& f) {
  const std::size_t element = size_of(tensor.dtype);
  const bool matrix = tensor.box.shape.rank() == 2;
  const std::int64_t width = matrix ? tensor.box.shape[1] : 1,
                     columns = matrix ? tensor.global_shape[1] : 1;
  for (std::int64_t r = 0; r < tensor.box.shape[0]; ++r) {
    const std::int64_t from =
        (tensor.box.offset[0] + r) * columns + (matrix ? tensor.box.offset[1] : 0);
    f(tensor.data + static_cast<std::size_t>(r * tensor.row_stride) * element,
      static_cast<std::size_t>(from) * element, static_cast<std::size_t>(width) * element);
  }
}

/// Everything that one rank saves, which has all.
Tensors whole_tensors(const ParamStore& store) {
  Tensors tensors;
  for (const StateTensor& tensor : store.state().tensors) {
    std::string& whole = tensors[tensor.name];
    whole.resize(static_cast<std::size_t>(tensor.global_shape.count()) * size_of(tensor.dtype));
    for_each_row(tensor, [&](const std::byte* row, std::size_t begin, std::size_t bytes) {
      std::memcpy(whole.data() + begin, row, bytes);
    });
  }
  return tensors;
}

/// What a rank has is its part of what one rank has.
void expect_parts_of(const Tensors& whole, const ParamStore& store) {
  for (const StateTensor& tensor : store.state().tensors) {
    const std::string& expected = whole.at(tensor.name);
    bool equal = true;
    for_each_row(tensor, [&](const std::byte* row, std::size_t begin, std::size_t bytes) {
      equal = equal && std::memcmp(row, expected.data() + begin, bytes) == 0;
    });
    EXPECT_TRUE(equal) << tensor.name << " " << tensor.box.shape.text();
  }
}

class CodedMoments : public testing::TestWithParam<OptimizerKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, CodedMoments,
                         testing::Values(OptimizerKind::kAdamW, OptimizerKind::kLion));

Tensors of_one_rank(OptimizerKind kind, DType compute, int steps = kSteps) {
  Context context({}, 2, detect_isa());
  ParamStore store(some_params(), compute, Optimizer::contents(config_of(kind)));
  store.initialise(context, 3);
  Optimizer optimizer(config_of(kind), store);
  make_steps(context, store, optimizer, steps);
  return whole_tensors(store);
}

TEST_P(CodedMoments, every_mesh_has_the_bits_of_one_rank) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const Tensors one = of_one_rank(GetParam(), compute);
    for (const int ranks : {2, 3, 4}) {
      for (const int stage : {0, 1, 2, 3}) {
        on_threads(ranks, [&](Communicator& channel) {
          const AxisRank all{ranks, channel.rank()};
          const Distribution dense =
              stage == 0 ? Distribution{all, {}, {}} : Distribution{{}, all, {}};
          Context context({}, 1, detect_isa());
          ParamStore store(some_params(), compute, Optimizer::contents(config_of(GetParam())), {},
                           dense_distribution(stage, dense));
          store.initialise(context, 3);
          ViewChannels channels;
          (stage == 0 ? channels[0].tensor : channels[0].shard) = &channel;
          Optimizer optimizer(config_of(GetParam()), store, channels);
          make_steps(context, store, optimizer, kSteps);
          expect_parts_of(one, store);
        });
      }
    }
  }
}

TEST_P(CodedMoments, small_tensors_have_moments_in_fp32) {
  ParamStore store(some_params(), DType::kF32, Optimizer::contents(config_of(GetParam())));
  std::set<std::string> coded, plain;
  for (const StateTensor& tensor : store.state().tensors) {
    if (!tensor.name.starts_with("optimizer/") || tensor.name.ends_with("absmax")) continue;
    const bool large = tensor.global_shape.count() >= 4096;
    EXPECT_EQ(tensor.dtype, large ? DType::kU8 : DType::kF32) << tensor.name;
    (large ? coded : plain).insert(tensor.name);
  }
  const int moments = GetParam() == OptimizerKind::kLion ? 1 : 2;
  EXPECT_EQ(std::ssize(coded), 5 * moments);
  EXPECT_EQ(std::ssize(plain), 2 * moments);
}

TEST_P(CodedMoments, an_update_taken_back_leaves_all_bits) {
  Context context({}, 1, detect_isa());
  on_threads(3, [&](Communicator& channel) {
    ParamStore store(some_params(), DType::kF32, Optimizer::contents(config_of(GetParam())), {},
                     dense_distribution(1, {{}, {3, channel.rank()}, {}}));
    Context own({}, 1, detect_isa());
    store.initialise(own, 3);
    ViewChannels channels;
    channels[0].shard = &channel;
    Optimizer optimizer(config_of(GetParam()), store, channels);
    optimizer.allow_undo({});
    make_steps(own, store, optimizer, kSteps);
    set_gradients(store, 77);
    optimizer.step(own, 1, 1, Optimizer::Undo::kPossible);
    optimizer.undo(own);
    expect_parts_of(of_one_rank(GetParam(), DType::kF32), store);
    set_gradients(store, kSteps);
    optimizer.step(own, 1e-2, 0.5);
    expect_parts_of(of_one_rank(GetParam(), DType::kF32, kSteps + 1), store);
  });
}

TEST_P(CodedMoments, an_update_that_is_measured_has_the_same_bits) {
  for (const int stage : {0, 1}) {
    on_threads(3, [&](Communicator& channel) {
      const AxisRank all{3, channel.rank()};
      Context context({}, 1, detect_isa());
      ParamStore store(some_params(), DType::kF32, Optimizer::contents(config_of(GetParam())), {},
                       dense_distribution(stage, stage == 0 ? Distribution{all, {}, {}}
                                                            : Distribution{{}, all, {}}));
      store.initialise(context, 3);
      ViewChannels channels;
      (stage == 0 ? channels[0].tensor : channels[0].shard) = &channel;
      Optimizer optimizer(config_of(GetParam()), store, channels);
      BlockMeter meter(store, {0, 1}, 2, {}, Optimizer::piece(config_of(GetParam())));
      for (int step = 0; step < kSteps; ++step) {
        set_gradients(store, step);
        optimizer.step(context, 1e-2, 0.5, meter);
      }
      EXPECT_GT(meter.squares()[1].elements, 0);
      EXPECT_GT(meter.squares()[1].update.value(), 0);
      expect_parts_of(of_one_rank(GetParam(), DType::kF32), store);
    });
  }
}

TEST_P(CodedMoments, what_is_not_finite_is_seen_on_every_rank) {
  on_threads(2, [&](Communicator& channel) {
    const AxisRank all{2, channel.rank()};
    Context context({}, 1, detect_isa());
    ParamStore store(some_params(), DType::kF32, Optimizer::contents(config_of(GetParam())), {},
                     dense_distribution(0, {all, {}, {}}));
    store.initialise(context, 3);
    ViewChannels channels;
    channels[0].tensor = &channel;
    Optimizer optimizer(config_of(GetParam()), store, channels);
    set_gradients(store, 0);
    // Row 0 of "parts", where the ranks' columns meet in a block.
    if (channel.rank() == 0)
      store.gradients().owned(3).as<float>()[191] = std::numeric_limits<float>::infinity();
    optimizer.step(context, 1e-2, 1);
    const float* absmax = store.optimizer_state("exp_avg_absmax", 3).as<float>();
    EXPECT_FALSE(std::isfinite(absmax[191 / 256]));
    EXPECT_TRUE(std::isfinite(absmax[2]));
  });
}

TEST(CodedMomentsBytes, moments_take_two_bytes_and_a_thirty_second) {
  std::vector<ParamMeta> params(1);
  params[0].name = "w";
  params[0].shape = {1024, 1024};
  const auto bytes = [&](MomentType type) {
    RunConfig::Optimizer config;
    config.state = type;
    return ParamStore::bytes_of(params, DType::kBF16, Optimizer::contents(config)).optimizer;
  };
  EXPECT_EQ(bytes(MomentType::kFp32), 8 << 20);
  EXPECT_EQ(bytes(MomentType::k8bit), (2 << 20) + (8 << 20) / 256);
  EXPECT_EQ(Optimizer::buffer_bytes(config_of(OptimizerKind::kAdamW), params, {}, DType::kF32), 0);
  EXPECT_EQ(Optimizer::bytes_of_update(config_of(OptimizerKind::kAdamW)), 20 + 4 + 16.0 / 256);
}

}  // namespace
}  // namespace trireme
