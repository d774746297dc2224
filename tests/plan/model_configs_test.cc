// The configs of known models, each on the number of GPUs that its name says, of 80 GiB.

#include <gtest/gtest.h>

#include <charconv>
#include <map>

#include "base/file.h"
#include "config/parse.h"
#include "plan/memory.h"
#include "plan/resolve.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

// What the files of the published weights hold.
const std::map<std::string, std::int64_t> kParameters = {
    {"gpt2_124m", 124439808},     {"gpt2_355m", 354823168},      {"gpt2_774m", 774030080},
    {"gpt2_1558m", 1557611200},   {"llama3_8b", 8030261248},     {"llama3_70b", 70553706496},
    {"llama3.1_8b", 8030261248},  {"llama3.1_70b", 70553706496}, {"llama3.1_405b", 405853388800},
    {"mistral_7b", 7248023552},   {"qwen2.5_0.5b", 494032768},   {"qwen2.5_1.5b", 1543714304},
    {"qwen2.5_3b", 3085938688},   {"qwen2.5_7b", 7615616512},    {"qwen2.5_14b", 14770033664},
    {"qwen2.5_32b", 32763876352}, {"qwen2.5_72b", 72706203648},  {"qwen3_0.6b", 596049920},
    {"qwen3_1.7b", 1720574976},   {"qwen3_4b", 4022468096},      {"qwen3_8b", 8190735360},
    {"qwen3_14b", 14768307200},   {"qwen3_32b", 32762123264},    {"smollm2_135m", 134515008},
    {"smollm2_360m", 361821120},  {"smollm2_1.7b", 1711376384},  {"smollm3_3b", 3075098624},
    {"olmo2_1b", 1484916736},     {"olmo2_7b", 7298617344},      {"olmo3_7b", 7298011136},
    {"gemma3_270m", 268098176},   {"gemma3_1b", 999885952},
};

struct ModelFile {
  fs::path path;
  std::string model;
  std::int64_t gpus = 0;
};

/// MODEL_Ngpu.json of every folder of configs/ that holds such files.
std::vector<ModelFile> model_files() {
  std::vector<ModelFile> files;
  for (const auto& entry : fs::recursive_directory_iterator(TRIREME_CONFIGS)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with("gpu.json")) continue;
    const std::size_t cut = name.rfind('_');
    ModelFile file{entry.path(), name.substr(0, cut)};
    std::from_chars(name.data() + cut + 1, name.data() + name.size(), file.gpus);
    files.push_back(std::move(file));
  }
  return files;
}

/// Data are the user's and not looked at; no file is named that a fresh clone lacks.
LoadedConfig load(const ModelFile& file) {
  return read_run_config({{file.path}, {"data.train=synthetic", "data.validation=synthetic"}});
}

class ModelConfigs : public testing::TestWithParam<ModelFile> {};

TEST_P(ModelConfigs, resolves_on_its_gpus_and_fits_into_their_memory) {
  const std::int64_t gpus = GetParam().gpus;
  LoadedConfig loaded = load(GetParam());
  ASSERT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  EXPECT_TRUE(loaded.notes.empty()) << loaded.notes[0];
  EXPECT_EQ(loaded.config.tokenizer, "byte");  // or `train plan FILE --no-data` ends with 74
  ResolveInput input;
  input.world = gpus;
  input.device = DeviceKind::kCuda;
  const ResolvedRun run = resolve_run(loaded.config, input, loaded.problems, loaded.notes);
  ASSERT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  EXPECT_EQ(run.compute, DType::kBF16);
  EXPECT_EQ(run.mesh.size(), gpus);
  EXPECT_GT(run.steps, 2 * loaded.config.lr_schedule.warmup_steps);
  // CUDA and NCCL take some of the 80 GiB.
  constexpr std::int64_t kMemory = std::int64_t{76} << 30;
  const int tensor = run.mesh.extent(Axis::kTensor);
  const int of_stage = run.mesh.size() / run.mesh.extent(Axis::kPipeline);
  for (int first = 0; first < run.mesh.size(); first += of_stage) {
    for (int rank = first; rank < first + tensor; ++rank) {
      const RankMemory memory = estimate_memory(
          loaded.config.model, memory_request(loaded.config, run, StagePurpose::kTraining, rank));
      EXPECT_LE(memory.total(), kMemory) << "rank " << rank;
    }
  }
}

TEST_P(ModelConfigs, is_the_model_that_was_published) {
  const LoadedConfig loaded = load(GetParam());
  const auto known = kParameters.find(GetParam().model);
  ASSERT_NE(known, kParameters.end());
  // Payload of a checkpoint: three fp32 numbers for each parameter.
  EXPECT_EQ(checkpoint_bytes(loaded.config) / 12, known->second);
}

TEST_P(ModelConfigs, names_its_schema_and_claims_no_speed) {
  const std::string text = read_file(GetParam().path);
  EXPECT_NE(text.find("no speed, utilisation or loss is claimed"), std::string::npos);
  const fs::path folder = fs::path(GetParam().path).parent_path();
  const std::string command = fmt::format("configs/{}/{}`", folder.filename().string(),
                                          GetParam().path.filename().string());
  EXPECT_NE(text.find(command), std::string::npos) << command;
  const Json json = parse_json(text, "config", {.comments = true});
  ASSERT_NE(json.find("$schema"), nullptr);
  EXPECT_TRUE(fs::is_regular_file(folder / json.find("$schema")->as_string()));
}

INSTANTIATE_TEST_SUITE_P(all, ModelConfigs, testing::ValuesIn(model_files()), [](const auto& one) {
  std::string name = one.param.path.stem().string();
  for (char& c : name) c = c == '.' ? '_' : c;
  return name;
});

TEST(ModelConfigFiles, those_of_a_model_differ_in_length_batch_and_layout_alone) {
  std::map<std::string, RunConfig> first;
  for (const ModelFile& file : model_files()) {
    SCOPED_TRACE(file.path.string());
    RunConfig config = load(file).config;
    config.run.tokens.reset();
    config.batch = {};
    config.parallel = {};
    const auto [same, added] = first.emplace(file.model, config);
    if (!added) {
      EXPECT_EQ(same->second, config);
    }
  }
  EXPECT_EQ(first.size(), kParameters.size());
}

}  // namespace
}  // namespace trireme
