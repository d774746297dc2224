#include "checkpoint/weight_set.h"

#include <gtest/gtest.h>

#include "checkpoint/test_state.h"
#include "checkpoint/weight_source.h"
#include "support/save_checkpoint.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

TEST(WeightSet, averages_stand_in_for_what_has_some) {
  const TemporaryDirectory folder;
  const std::unique_ptr<Communicator> self = make_self_communicator();
  TestState state;
  state.add_whole("parameters/a.weight", Shape{3, 2});
  state.add_whole("parameters/still", Shape{4});
  state.add_whole("ema/a.weight", Shape{3, 2});
  state.fill(1);
  const SaveResult saved = save_checkpoint(request_for(folder.path(), 3, state.state()), *self);
  ASSERT_EQ(saved.error, "");
  const Manifest manifest = read_manifest(saved.path);
  EXPECT_EQ(stored_name(manifest, "a.weight", WeightSet::kLast), "parameters/a.weight");
  EXPECT_EQ(stored_name(manifest, "a.weight", WeightSet::kAveraged), "ema/a.weight");
  EXPECT_EQ(stored_name(manifest, "still", WeightSet::kAveraged), "parameters/still");

  const auto last = open_weights(saved.path),
             averaged = open_weights(saved.path, WeightSet::kAveraged);
  EXPECT_EQ(averaged->weights().size(), 2U);
  const auto bytes_of = [](const WeightSource& source, const char* name) {
    const std::span<const float> values = source.read_fp32(name);
    return std::string(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  };
  const auto bytes_at = [&](std::size_t i) {
    const StateTensor& tensor = state.state().tensors[i];
    return std::string(reinterpret_cast<const char*>(tensor.data),
                       static_cast<std::size_t>(tensor.box.shape.count()) * sizeof(float));
  };
  EXPECT_EQ(bytes_of(*last, "a.weight"), bytes_at(0));
  EXPECT_EQ(bytes_of(*averaged, "a.weight"), bytes_at(2));
  EXPECT_EQ(bytes_of(*averaged, "still"), bytes_at(1));
}

TEST(WeightSet, a_checkpoint_without_averages_is_refused) {
  Manifest manifest;
  manifest.tensors.push_back({"parameters/emails", DType::kF32, Shape{1}, {}, {}});
  EXPECT_NO_THROW(require_weights(manifest, "run", WeightSet::kLast));
  EXPECT_THROW(require_weights(manifest, "run", WeightSet::kAveraged), ConfigError);
}

}  // namespace
}  // namespace trireme
