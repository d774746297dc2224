// Tensors of experts that files have in one: names, places, and whole files read and refused.

#include "checkpoint/tensor_parts.h"

#include <gtest/gtest.h>

#include <numeric>

#include "checkpoint/boxes.h"
#include "checkpoint/huggingface.h"
#include "support/temporary_directory.h"
#include "test_state.h"

namespace trireme {
namespace {

TEST(TensorParts, a_name_says_which_part_of_which_tensor) {
  const TensorPart up = *part_of("layers.0.experts.gate_up_proj[12].up");
  EXPECT_EQ(up.stored, "layers.0.experts.gate_up_proj");
  EXPECT_EQ(up.index, 12);
  EXPECT_EQ(up.first, 1);
  EXPECT_EQ(up.step, 2);
  EXPECT_EQ(part_of("x[0].gate")->first, 0);
  EXPECT_EQ(part_of("x[3]")->step, 1);
  EXPECT_EQ(stored_name("x[3]"), "x");
  for (const char* name : {"x", "x[", "x[1", "x]", "x[]", "x[-1]", "x[1a]", "x[1].down", "x[1.up",
                           "x.up", "x[99999999999999999999]", "x[99999999]"}) {
    EXPECT_FALSE(part_of(name)) << name;
    EXPECT_EQ(stored_name(name), name);
  }
}

TEST(TensorParts, parts_are_counted_and_missed) {
  const std::set<std::string> whole = {"a[0]", "a[1]", "b[0].gate", "b[0].up", "c"};
  EXPECT_EQ(count_parts(whole), (std::map<std::string, std::int64_t>{{"a", 2}, {"b", 1}}));
  EXPECT_THROW(count_parts({"a[0]", "a[2]"}), DataError);
  EXPECT_THROW(count_parts({"a[1]"}), DataError);
  EXPECT_THROW(count_parts({"b[0].gate"}), DataError);
  EXPECT_THROW(count_parts({"b[0].gate", "b[1].gate", "b[1].up"}), DataError);
}

constexpr std::int64_t kExperts = 3, kIn = 5, kOut = 4;

/// What stands at [e, i, column] of the stored tensor.
float stored_at(std::int64_t e, std::int64_t i, std::int64_t column) {
  return static_cast<float>(10000 * e + 100 * i + column);
}

TEST(TensorParts, any_box_is_taken_from_any_blocks_and_put_back) {
  for (const std::int64_t step : {1, 2}) {
    for (std::int64_t first = 0; first < step; ++first) {
      const TensorPart part{"x", 2, first, step};
      const Shape ours{kOut, kIn};
      EXPECT_EQ(part.stored_shape(ours, kExperts), (Shape{kExperts, kIn, kOut * step}));
      for (const Box& box : {Box{{0, 0}, ours}, Box{{1, 0}, {2, kIn}}, Box{{0, 2}, {kOut, 3}},
                             Box{{3, 4}, {1, 1}}}) {
        for (const std::int64_t most : {1, 3, 7, 1000}) {
          std::vector<float> found(static_cast<std::size_t>(box.shape.count()), -1);
          for (const Box& block : cut_box({{2, 0, 0}, {1, kIn, kOut * step}}, most)) {
            std::vector<float> values;
            for (std::int64_t i = 0; i < block.shape[1]; ++i)
              for (std::int64_t c = 0; c < block.shape[2]; ++c)
                values.push_back(stored_at(2, block.offset[1] + i, block.offset[2] + c));
            part.take(block, values.data(), box, found.data());
          }
          std::vector<float> expected;
          for (std::int64_t o = 0; o < box.shape[0]; ++o)
            for (std::int64_t i = 0; i < box.shape[1]; ++i)
              expected.push_back(
                  stored_at(2, box.offset[1] + i, (box.offset[0] + o) * step + first));
          EXPECT_EQ(found, expected) << step << ", blocks of " << most;
        }
      }
      std::vector<float> values(20), put(static_cast<std::size_t>(20 * step), -1);
      std::iota(values.begin(), values.end(), 0.0F);
      part.put(ours, values.data(), put.data());
      for (std::int64_t i = 0; i < kIn; ++i)
        for (std::int64_t c = 0; c < kOut * step; ++c)
          EXPECT_EQ(put[static_cast<std::size_t>(i * kOut * step + c)],
                    c % step == first ? static_cast<float>(c / step * kIn + i) : -1.0F);
    }
  }
}

TEST(TensorParts, a_vector_lies_as_it_is_in_turns) {
  const TensorPart up{"x", 1, 1, 2};
  EXPECT_EQ(up.stored_shape({kOut}, kExperts), (Shape{kExperts, 2 * kOut}));
  const std::vector<float> stored = {0, 10, 1, 11, 2, 12, 3, 13};
  std::vector<float> found(2);
  up.take({{1, 0}, {1, 8}}, stored.data(), {{1}, {2}}, found.data());
  EXPECT_EQ(found, (std::vector<float>{11, 12}));
  std::vector<float> put(8);
  up.put({kOut}, std::vector<float>{10, 11, 12, 13}.data(), put.data());
  EXPECT_EQ(put, (std::vector<float>{0, 10, 0, 11, 0, 12, 0, 13}));
}

/// A file with one tensor of experts, and what a rank has of them.
class ExpertsInOne : public testing::Test {
 protected:
  void write(const std::string& name, const Shape& shape) {
    SafetensorsWriter writer(folder_.path(), DType::kF32, {{name, shape}});
    std::vector<float> values;
    for (std::int64_t e = 0; e < shape[0]; ++e)
      for (std::int64_t i = 0; i < shape[1]; ++i)
        for (std::int64_t c = 0; c < shape[2]; ++c) values.push_back(stored_at(e, i, c));
    // In slices of uneven length, as an export writes them.
    const std::span<const float> all(values);
    writer.write_slice(all.first(7));
    writer.write_slice(all.subspan(7));
    writer.finish();
  }
  std::string fault(TestState& state) {
    try {
      import_weights(folder_.path(), state.state(), *world_);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  }
  static TestState parts(std::int64_t experts) {
    TestState state;
    for (std::int64_t e = 0; e < experts; ++e)
      for (const char* columns : {"gate", "up"})
        state.add_whole(fmt::format("parameters/x[{}].{}", e, columns), {kOut, kIn});
    return state;
  }
  TemporaryDirectory folder_;
  std::unique_ptr<Communicator> world_ = make_self_communicator();
};

TEST_F(ExpertsInOne, each_is_read_to_its_place) {
  write("x", {kExperts, kIn, 2 * kOut});
  TestState state = parts(kExperts);
  state.add({"parameters/x[2].up", DType::kF32, {kOut, kIn}, {{1, 1}, {2, 3}}});
  EXPECT_EQ(fault(state), "");
  for (const StateTensor& tensor : state.state().tensors) {
    const TensorPart part = *part_of(tensor.name.substr(std::string("parameters/").size()));
    const auto* values = reinterpret_cast<const float*>(tensor.data);
    for (std::int64_t o = 0; o < tensor.box.shape[0]; ++o)
      for (std::int64_t i = 0; i < tensor.box.shape[1]; ++i)
        EXPECT_EQ(values[o * tensor.box.shape[1] + i],
                  stored_at(part.index, tensor.box.offset[1] + i,
                            2 * (tensor.box.offset[0] + o) + part.first))
            << tensor.name;
  }
}

TEST_F(ExpertsInOne, another_number_or_shape_of_experts_is_refused_by_the_files_name) {
  const auto names = [&](TestState state, const char* text) {
    const std::string found = fault(state);
    EXPECT_NE(found.find(text), std::string::npos) << found;
  };
  write("x", {kExperts, kIn, 2 * kOut});
  names(parts(2), "x is F32 [3, 5, 8], the model has [2, 5, 8]");
  write("x", {kExperts, 2 * kOut, kIn});
  names(parts(kExperts), "x is F32 [3, 8, 5], the model has [3, 5, 8]");
  write("y", {kExperts, kIn, 2 * kOut});
  names(parts(kExperts), "Missing: x. Not in the model: y.");
  write("x_proj_blocks", {kExperts, kIn, 2 * kOut});
  names(parts(kExperts), "Mxfp4Config(dequantize=True)");
}

}  // namespace
}  // namespace trireme
