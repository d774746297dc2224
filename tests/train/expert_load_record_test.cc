#include "train/expert_load_record.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

TEST(ExpertLoadRecord, is_the_sum_over_the_steps) {
  ModelConfig model;
  model.layers.resize(2);
  model.layers[1].experts = ExpertsConfig{.count = 2, .chosen = 1, .ffn = 8};
  const TemporaryDirectory folder;
  ExpertLoadRecord record(model, folder.path());
  ExpertReport step;
  step.tokens = {{0, 0}, {3, 1}};
  record.add(step);
  record.write();
  step.tokens = {{0, 0}, {0, 4}};
  record.add(step);
  record.write();
  const std::filesystem::path path = folder / ExpertLoadRecord::kFileName;
  EXPECT_EQ(read_file(path), "{\"load\":[null,[3,5]]}\n");
  EXPECT_EQ(read_expert_load(path, model), (ExpertLoad{{}, {3, 5}}));
}

TEST(ExpertLoadRecord, that_cannot_be_written_stops_nobody) {
  const TemporaryDirectory folder;
  EXPECT_NO_THROW(ExpertLoadRecord(ModelConfig(), folder / "missing").write());
}

}  // namespace
}  // namespace trireme
