// An export by several ranks: the bytes of one rank's, a share of the work for each, faults of one
// reported by all.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/file.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/reader.h"
#include "process_counts.h"
#include "shared_directory.h"
#include "support/save_checkpoint.h"
#include "test_state.h"

namespace trireme {
namespace {

constexpr int kTensors = 48;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;
const Shape kShape{512, 512};  // 1 MiB in fp32

class ExportOnRanks : public testing::Test {
 protected:
  void SetUp() override {
    Communicator& world = test_world();
    const int rank = world.rank(), ranks = world.size();
    TestState state;
    for (int i = 0; i < kTensors; ++i) {
      state.add({fmt::format("parameters/model.layers.{:02}.mlp.up_proj.weight", i), DType::kF32,
                 kShape, whole(kShape), rank, ranks});
    }
    int salt = 0;
    for (const StateTensor& tensor : state.state().tensors) {
      auto* values = reinterpret_cast<float*>(tensor.data);
      for (std::int64_t i = 0; i < kShape.count(); ++i)
        values[i] = static_cast<float>((i * 7919 + salt) % 1000003) * 1e-3F;
      ++salt;
    }
    SaveRequest request = request_for(directory_.path() / "checkpoints", 1, state.state());
    request.model = parse_json(R"({"model_type": "llama", "hidden_size": 512, "vocab_size": 512,
        "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 512})",
                               "the test's model");
    request.files.push_back({"tokenizer.json", R"({"added_tokens":[{"id":5,"content":"<end>"}]})"});
    const SaveResult saved = save_checkpoint(request, world);
    ASSERT_EQ(saved.error, "");
    checkpoint_ = saved.path;
  }
  static std::map<std::string, std::string> files_of(const std::filesystem::path& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      files[entry.path().filename().string()] = read_file(entry.path());
    return files;
  }
  std::vector<std::string> names() const {
    test_world().barrier();
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path()))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    test_world().barrier();
    return names;
  }

  SharedDirectory directory_;
  std::filesystem::path checkpoint_;
};

TEST_F(ExportOnRanks, gives_the_files_of_one_rank_byte_by_byte) {
  const std::unique_ptr<Communicator> alone = make_self_communicator();
  for (const auto& [dtype, file_bytes_max] :
       {std::pair{DType::kF32, 5 * kMiB}, {DType::kBF16, 5 * kMiB}, {DType::kF32, 100 * kMiB}}) {
    const ExportOptions options{dtype, file_bytes_max, {}};
    const std::filesystem::path one = directory_.path() / "one", many = directory_.path() / "many";
    if (test_world().rank() == 0) export_checkpoint(checkpoint_, one, options, *alone);
    test_world().barrier();
    const ExportResult result = export_checkpoint(checkpoint_, many, options, test_world());
    EXPECT_EQ(result.tensors, kTensors);
    EXPECT_EQ(result.bytes, kTensors * kShape.count() * static_cast<int>(size_of(dtype)));
    if (test_world().rank() == 0) {
      const auto expected = files_of(one), got = files_of(many);
      ASSERT_EQ(got.size(), expected.size());
      EXPECT_EQ(got.contains("model.safetensors.index.json"), file_bytes_max < 100 * kMiB);
      for (const auto& [name, bytes] : expected) EXPECT_TRUE(got.at(name) == bytes) << name;
    }
    EXPECT_EQ(names(), (std::vector<std::string>{"checkpoints", "many", "one"}));
  }
}

TEST_F(ExportOnRanks, no_rank_reads_more_than_its_files_or_holds_more_than_a_few_tensors) {
  const int ranks = test_world().size();
  const std::int64_t read_before = count_of("io", "rchar");
  const std::int64_t growth = growth_of([&] {
    export_checkpoint(checkpoint_, directory_.path() / "hf", {DType::kF32, 2 * kMiB, {}},
                      test_world());
  });
  if (read_before >= 0) {
    const std::int64_t rounds = (kTensors / 2 + ranks - 1) / ranks;
    EXPECT_LT(count_of("io", "rchar") - read_before, rounds * 2 * kMiB + kMiB);
  }
  EXPECT_LT(growth, kTensors * kMiB / 4);
}

TEST_F(ExportOnRanks, a_fault_of_any_rank_is_reported_by_all_and_leaves_what_was_there) {
  const std::filesystem::path output = directory_.path() / "hf";
  export_checkpoint(checkpoint_, output, {DType::kF32, 5 * kMiB, {}}, test_world());
  const auto before = files_of(output);
  for (int guilty = 0; guilty < test_world().size(); ++guilty) {
    int tensors = 0;
    const ExportOptions faulty{DType::kBF16, 2 * kMiB, [&] {
                                 if (test_world().rank() == guilty && ++tensors == 3)
                                   throw DataError("no room");
                               }};
    try {
      export_checkpoint(checkpoint_, output, faulty, test_world());
      FAIL() << "nothing was thrown";
    } catch (const SharedError& error) {
      EXPECT_EQ(std::string(error.what()), fmt::format("rank {}: no room", guilty));
      EXPECT_EQ(error.code(), ExitCode::kData);
    }
    EXPECT_EQ(names(), (std::vector<std::string>{"checkpoints", "hf"}));
    EXPECT_TRUE(files_of(output) == before);
  }
}

}  // namespace
}  // namespace trireme
