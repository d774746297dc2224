// Hugging Face directories in and out hold a part of a model at a time: memory and bytes read are
// counted beside the model's.

#include <gtest/gtest.h>

#include "base/file.h"
#include "checkpoint/async_writer.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/reader.h"
#include "process_counts.h"
#include "support/save_checkpoint.h"
#include "support/temporary_directory.h"
#include "test_state.h"

namespace trireme {
namespace {

constexpr int kTensors = 96;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;
const Shape kShape{512, 512};  // 1 MiB in fp32

std::string name_of_tensor(int i) {
  return fmt::format("model.layers.{:02}.mlp.up_proj.weight", i);
}

class BoundedMemory : public testing::Test {
 protected:
  void SetUp() override {
    if (count_of("status", "VmHWM") < 0) GTEST_SKIP() << "no /proc/self/status here";
    // Of AddressSanitizer, what is freed stays for a while.
    TestState state;
    for (int i = 0; i < kTensors; ++i) state.add_whole("parameters/" + name_of_tensor(i), kShape);
    SaveRequest request = request_for(directory_ / "checkpoints", 1, state.state());
    request.model = parse_json(R"({"model_type": "llama", "hidden_size": 512, "vocab_size": 512,
        "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 512})",
                               "the test's model");
    const SaveResult saved = save_checkpoint(request, *world_);
    ASSERT_EQ(saved.error, "");
    checkpoint_ = saved.path;
  }
  TemporaryDirectory directory_;
  std::filesystem::path checkpoint_, output_ = directory_ / "hf";
  std::unique_ptr<Communicator> world_ = make_self_communicator();
};

TEST_F(BoundedMemory, an_export_holds_a_few_tensors_and_never_the_model) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::int64_t growth = growth_of([&] {
      export_checkpoint(checkpoint_, output_, {dtype, 20 * kMiB, {}}, *world_);
    });
    EXPECT_LT(growth, kTensors * kMiB / 4) << "of a model of " << kTensors << " MiB";
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(output_)) {
      if (entry.path().extension() != ".safetensors") continue;
      ++files;
      EXPECT_LE(entry.file_size(), static_cast<std::uintmax_t>(20 * kMiB + 100000));
    }
    EXPECT_GE(files, dtype == DType::kF32 ? 5 : 3);
  }
}

TEST_F(BoundedMemory, an_import_of_a_quarter_reads_and_holds_a_quarter) {
  export_checkpoint(checkpoint_, output_, {DType::kF32, 20 * kMiB, {}}, *world_);
  TestState part;
  for (int i = 0; i < kTensors; ++i)
    part.add({"parameters/" + name_of_tensor(i), DType::kF32, kShape, {{128, 0}, {128, 512}}});
  part.fill(1);  // its pages are there before
  const std::int64_t read_before = count_of("io", "rchar");
  const std::int64_t growth = growth_of([&] { import_weights(output_, part.state(), *world_); });
  EXPECT_LT(growth, kTensors * kMiB / 4);
  if (read_before < 0) return;  // not reported here
  EXPECT_LT(count_of("io", "rchar") - read_before, kTensors * kMiB / 4 + 2 * kMiB);
}

}  // namespace
}  // namespace trireme
