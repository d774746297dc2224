#include "store/host_state.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "store/param_store.h"
#include "support/fetch.h"
#include "support/program_device.h"
#include "support/store_contents.h"

namespace trireme {
namespace {

/// On the GPU of a program that has one (or its execution on the host), else on the CPU.
struct Model {
  Context context;
  ParamStore store;

  Model()
      : context(program_device(), 1, detect_isa()),
        store(metas(), DType::kF32, kTrainingStore, context.device()) {
    store.initialise(context, 3);
  }
  static std::vector<ParamMeta> metas() {
    std::vector<ParamMeta> params(2);
    params[0] = {"a", {5, 3}, {InitKind::kNormal, 1}, true, 0, Fuse::kNo};
    params[1] = {"b", {7}, {InitKind::kOnes, 0}, true, 1, Fuse::kNo};
    return params;
  }
  std::vector<float> read(ConstTensorView tensor) {
    std::vector<float> values(static_cast<std::size_t>(tensor.count()));
    copy_out(context, std::as_writable_bytes(std::span(values)), tensor);
    return values;
  }
};

float* floats(const StateTensor& tensor) { return reinterpret_cast<float*>(tensor.data); }

TEST(HostState, gives_tensors_what_stands_in_the_copies) {
  Model model;
  const std::vector<float> before = model.read(model.store.value(0));
  const State given = model.store.state();
  HostState host(model.context, given);
  fetch(model.context, given, host);
  const State& state = host.state();
  ASSERT_EQ(state.tensors.size(), 6U);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), floats(state.tensors[0])));
  floats(state.tensors[1])[6] = 8;
  host.store();
  EXPECT_EQ(model.read(model.store.value(0)), before);
  EXPECT_EQ(model.read(model.store.value(1)), (std::vector<float>{1, 1, 1, 1, 1, 1, 8}));
}

/// The last two of three columns, as a part that the tensor axis shards would lie.
TEST(HostState, a_part_of_wider_rows_stands_contiguous_and_goes_back_between_its_neighbours) {
  Model model;
  const TensorView whole = model.store.value(0);
  const std::vector<float> before = model.read(whole);
  StateTensor part;
  part.name = "parameters/a";
  part.global_shape = {5, 7};
  part.box = {{0, 3}, {5, 2}};
  part.data = whole.data + sizeof(float);
  part.row_stride = 3;
  ASSERT_FALSE(part.contiguous());
  State state;
  state.tensors.push_back(part);
  HostState host(model.context, state);
  fetch(model.context, state, host);
  const StateTensor& copy = host.state().tensors[0];
  EXPECT_TRUE(copy.contiguous());
  EXPECT_NE(copy.data, part.data);
  for (std::size_t row = 0; row < 5; ++row) {
    for (std::size_t column = 0; column < 2; ++column)
      EXPECT_EQ(floats(copy)[2 * row + column], before[3 * row + 1 + column]);
  }
  for (int i = 0; i < 10; ++i) floats(copy)[i] = static_cast<float>(100 + i);
  host.store();
  std::vector<float> expected = before;
  for (std::size_t row = 0; row < 5; ++row) {
    for (std::size_t column = 0; column < 2; ++column)
      expected[3 * row + 1 + column] = static_cast<float>(100 + 2 * row + column);
  }
  EXPECT_EQ(model.read(whole), expected);
}

/// Pieces smaller than rows, as large as some, and larger than all: tensors are cut anywhere, and
/// the same bytes arrive.
TEST(HostState, pieces_of_any_size_give_the_same_bytes) {
  Model model;
  const TensorView whole = model.store.value(0);
  const auto part_of_rows = [&] {
    StateTensor part;
    part.name = "parameters/a";
    part.global_shape = {5, 7};
    part.box = {{0, 3}, {5, 2}};
    part.data = whole.data + sizeof(float);
    part.row_stride = 3;
    return part;
  };
  const std::vector<float> a = model.read(whole), b = model.read(model.store.value(1));
  for (const std::size_t piece : {1U, 3U, 8U, 60U, 64U, 1000U}) {
    State state = model.store.state();
    state.tensors.push_back(part_of_rows());
    HostState host(model.context, state, piece);
    fetch(model.context, state, host);
    const std::vector<StateTensor>& tensors = host.state().tensors;
    EXPECT_TRUE(std::equal(a.begin(), a.end(), floats(tensors[0]))) << piece;
    EXPECT_TRUE(std::equal(b.begin(), b.end(), floats(tensors[1]))) << piece;
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(floats(tensors.back())[i], a[static_cast<std::size_t>(i / 2 * 3 + 1 + i % 2)])
          << piece;
      floats(tensors.back())[i] = static_cast<float>(i);
    }
    host.store();  // the tensor as it was, then the part of it
    std::vector<float> expected = a;
    for (std::size_t i = 0; i < 10; ++i) expected[i / 2 * 3 + 1 + i % 2] = static_cast<float>(i);
    EXPECT_EQ(model.read(whole), expected) << piece;
    std::copy(a.begin(), a.end(), floats(tensors[0]));
    for (std::size_t i = 0; i < 10; ++i) floats(tensors.back())[i] = a[i / 2 * 3 + 1 + i % 2];
    host.store();
    EXPECT_EQ(model.read(whole), a) << piece;
  }
}

/// More than several slices of a piece, and several pieces.
TEST(HostState, large_tensors_are_copied_by_slices_and_pieces) {
  Model model;
  const auto count = std::size_t{3} << 20;  // 12 MiB
  const Memory memory(model.context.device(), count * sizeof(float));
  StateTensor tensor;
  tensor.name = "parameters/large";
  tensor.global_shape = {static_cast<std::int64_t>(count)};
  tensor.box = {{0}, {static_cast<std::int64_t>(count)}};
  tensor.data = memory.data();
  State state;
  state.tensors.push_back(tensor);
  HostState host(model.context, state, (std::size_t{5} << 20) + 4);
  float* values = floats(host.state().tensors[0]);
  const auto value = [](std::size_t i) { return static_cast<float>(i * 7 % 1000003); };
  for (std::size_t i = 0; i < count; ++i) values[i] = value(i);
  host.store();
  std::fill_n(values, count, -1.0F);
  fetch(model.context, state, host);
  if (!model.context.on_gpu()) return;  // the tensor itself, no copy
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(values[i], value(i)) << i;
}

/// Weights from elsewhere: their reader sees the parameters alone, in an order of its own.
TEST(HostState, a_caller_may_take_tensors_out_and_move_them) {
  Model model;
  const State given = model.store.state();
  HostState host(model.context, given);
  fetch(model.context, given, host);
  std::vector<StateTensor>& tensors = host.state().tensors;
  std::erase_if(tensors, [](const StateTensor& t) { return !t.name.starts_with("parameters/"); });
  std::reverse(tensors.begin(), tensors.end());
  ASSERT_EQ(tensors.size(), 2U);
  std::fill_n(floats(tensors[0]), 7, 2.0F);
  std::fill_n(floats(tensors[1]), 15, 3.0F);
  tensors.shrink_to_fit();
  host.store();
  EXPECT_EQ(model.read(model.store.value(0)), std::vector<float>(15, 3.0F));
  EXPECT_EQ(model.read(model.store.value(1)), std::vector<float>(7, 2.0F));
  EXPECT_EQ(model.read(model.store.optimizer_state(1, 0)), std::vector<float>(15, 0.0F));
}

}  // namespace
}  // namespace trireme
