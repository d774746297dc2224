#include "checkpoint/base_hashes.h"

#include <gtest/gtest.h>

#include "adapter_fixture.h"
#include "base/hash.h"
#include "support/temporary_directory.h"
#include "support/thread_ranks.h"

namespace trireme {
namespace {

class BaseHashes : public testing::Test {
 protected:
  /// A model in three files of weights.
  void SetUp() override {
    std::vector<SafetensorsWriter::Tensor> tensors = {{"a", {4}}, {"b", {4}}, {"c", {4}}};
    SafetensorsWriter writer(folder_.path(), DType::kF32, tensors, 16);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      writer.write(std::vector<float>(4, static_cast<float>(i)));
    writer.finish();
    folder_.write("config.json", "{}");
    folder_.write("tokenizer.json", "{}");
  }
  std::string fault_of(const Json& hashes) {
    try {
      check_base(hashes, folder_.path(), *self_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      return error.what();
    }
    return "";
  }
  TemporaryDirectory folder_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
};

TEST_F(BaseHashes, weights_and_config_alike_on_any_number_of_ranks) {
  const Json alone = base_hashes(folder_.path(), *self_);
  ASSERT_EQ(alone.as_object().size(), 4U);
  for (const auto& [name, hash] : alone.as_object())
    EXPECT_EQ(hash.as_string(), xxh3_128_hex(read_file(folder_.path() / name)));
  EXPECT_EQ(alone.find("tokenizer.json"), nullptr);
  for (const int ranks : {2, 3, 5})
    on_threads(ranks, [&](Communicator& world) {
      EXPECT_EQ(base_hashes(folder_.path(), world), alone);
      check_base(alone, folder_.path(), world);
    });
}

TEST_F(BaseHashes, another_file_is_named_with_both_hashes) {
  const Json hashes = base_json(folder_.path(), *self_)["hashes"];
  EXPECT_EQ(fault_of(hashes), "");
  EXPECT_EQ(fault_of(nullptr), "");
  const std::string name = "model-00002-of-00003.safetensors";
  std::string bytes = read_file(folder_.path() / name);
  bytes.back() ^= 1;
  folder_.write(name, bytes);
  const std::string said = fault_of(hashes);
  for (const std::string& part :
       {name, hashes.find(name)->as_string(), xxh3_128_hex(bytes), std::string("--base DIR")})
    EXPECT_NE(said.find(part), std::string::npos) << said;
  Json fewer = base_hashes(folder_.path(), *self_);
  fewer.erase("config.json");
  EXPECT_NE(fault_of(fewer).find("config.json"), std::string::npos);
}

TEST_F(BaseHashes, of_a_checkpoint_its_manifest) {
  const AdapterGolden golden("gpt2_dora");
  const std::filesystem::path step = save_adapters(golden, folder_ / "run", golden.base);
  const Json hashes = base_hashes(step, *self_);
  ASSERT_EQ(hashes.as_object().size(), 1U);
  EXPECT_EQ(hashes.find("manifest.json")->as_string(),
            xxh3_128_hex(read_file(step / kManifestName)));
}

}  // namespace
}  // namespace trireme
