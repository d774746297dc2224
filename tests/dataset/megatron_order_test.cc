#include "dataset/megatron_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "dataset/blend.h"
#include "dataset/sources.h"
#include "support/golden.h"
#include "token_fixture.h"

namespace trireme {
namespace {
namespace fs = std::filesystem;

/// Equal to what order.json says of an array: its beginning, its size and the hash of all of it.
template <class T>
void expect_array(const std::vector<T>& actual, const Json& golden, const std::string& what) {
  std::vector<std::int64_t> head(actual.begin(), actual.end());
  const std::vector<std::int64_t> expected = flat_integers(*golden.find("head"));
  head.resize(std::min(head.size(), expected.size()));
  EXPECT_EQ(head, expected) << what;
  std::int64_t size = 1;
  for (const std::int64_t extent : flat_integers(*golden.find("shape"))) size *= extent;
  EXPECT_EQ(static_cast<std::int64_t>(actual.size()), size) << what;
  EXPECT_EQ(xxh3_128_hex(std::as_bytes(std::span(actual))), golden.find("xxh3_128")->as_string())
      << what;
}

template <class T>
std::vector<T> copied(std::span<const T> values) {
  return {values.begin(), values.end()};
}

void expect_index(const MegatronIndex& index, const Json& golden, const std::string& name) {
  std::vector<std::int32_t> samples;
  for (std::size_t i = 0; i < index.sample_position.size(); ++i) {
    samples.push_back(static_cast<std::int32_t>(index.sample_position[i]));
    samples.push_back(index.sample_offset[i]);
  }
  expect_array(copied(index.document_index), *golden.find("document_index"), name + " documents");
  expect_array(samples, *golden.find("sample_index"), name + " samples");
  expect_array(copied(index.shuffle_index), *golden.find("shuffle_index"), name + " shuffle");
}

std::string corpus_prefix(const std::string& name) {
  return golden_path("megatron/" + name).string();
}

/// The config that asks for a golden setting's training part.
RunConfig config_of(const Json& setting, const fs::path& cache) {
  RunConfig config;
  config.run.directory = (cache / "run").string();
  config.data.cache_directory = cache.string();
  config.data.order = SampleOrderKind::kMegatron;
  config.data.sequence_length = setting.find("sequence_length")->as_integer();
  config.data.seed = setting.find("seed")->as_integer();
  if (setting.find("split")->is_string()) config.data.split = setting.find("split")->as_string();
  const Json& sources = *setting.find("sources");
  config.data.train.weighted = sources.is_array();
  if (sources.is_string()) {
    config.data.train.blend = {{1.0, corpus_prefix(sources.as_string())}};
  } else {
    for (const Json& pair : sources.as_array()) {
      config.data.train.blend.emplace_back(pair.as_array()[0].as_double(),
                                           corpus_prefix(pair.as_array()[1].as_string()));
    }
  }
  return config;
}

SourceRequest request_of(std::int64_t samples) {
  SourceRequest request;
  request.total_samples = samples;
  request.vocab_size = 307;
  return request;
}

DataPart part_of(const Json& setting) {
  const std::string& part = setting.find("part")->as_string();
  return part == "train"   ? DataPart::kTrain
         : part == "valid" ? DataPart::kValidation
                           : DataPart::kTest;
}

std::vector<Corpus> corpora_of(const RunConfig& config, DataPart part) {
  std::vector<Corpus> corpora;
  for (const auto& [weight, prefix] : config.data.train.blend) {
    auto file = std::make_shared<const IndexedFile>(prefix);
    SequenceRange range{0, file->sequences()};
    if (config.data.split) {
      range =
          split_sequences(*config.data.split, file->sequences())[static_cast<std::size_t>(part)];
    }
    corpora.emplace_back(file, range);
  }
  return corpora;
}

void expect_setting(const Json& setting) {
  const std::string& name = setting.find("name")->as_string();
  const TemporaryDirectory cache;
  const RunConfig config = config_of(setting, cache.path());
  const std::int64_t samples = setting.find("samples")->as_integer(),
                     length = config.data.sequence_length;

  const auto& datasets = setting.find("datasets")->as_array();
  const std::vector<Corpus> corpora = corpora_of(config, part_of(setting));
  ASSERT_EQ(corpora.size(), datasets.size()) << name;
  for (std::size_t d = 0; d < corpora.size(); ++d) {
    const SequenceRange range = corpora[d].range();
    EXPECT_EQ((std::vector<std::int64_t>{range.begin, range.end}),
              flat_integers(*datasets[d].find("sequences")))
        << name;
    const MegatronRequest request{range, length, datasets[d].find("requested")->as_integer(),
                                  static_cast<std::uint32_t>(*config.data.seed)};
    expect_index(MegatronIndex::build(corpora[d].file(), request), datasets[d], name);
  }

  const auto source = make_megatron_source(config, corpora, samples);
  const auto* blend = dynamic_cast<const BlendSource*>(source.get());
  ASSERT_EQ(blend != nullptr, !setting.find("blend")->is_null()) << name;
  if (blend != nullptr) {
    EXPECT_EQ(blend->count(), setting.find("blend")->find("size")->as_integer()) << name;
    std::vector<std::int16_t> sources;
    std::vector<std::int64_t> numbers;
    for (std::int64_t i = 0; i < blend->count(); ++i) {
      sources.push_back(static_cast<std::int16_t>(blend->draw(i).source));
      numbers.push_back(blend->draw(i).sample);
    }
    expect_array(sources, *setting.find("blend")->find("dataset_index"), name + " blend");
    expect_array(numbers, *setting.find("blend")->find("dataset_sample_index"),
                 name + " blend samples");
  }
  std::vector<std::int32_t> windows(static_cast<std::size_t>(samples * (length + 1)));
  for (std::int64_t i = 0; i < samples; ++i) {
    source->read(i, {std::span(windows).subspan(i * (length + 1), length + 1), {}});
  }
  expect_array(windows, *setting.find("windows"), name + " windows");
}

TEST(MegatronOrder, equals_megatron_core_index_for_index) {
  const Json settings = read_golden_json("megatron/order.json");
  ASSERT_GE(settings.as_array().size(), 20U);
  for (const Json& setting : settings.as_array()) expect_setting(setting);
}

TEST(MegatronOrder, the_factory_gives_the_training_part) {
  const Json settings = read_golden_json("megatron/order.json");
  int compared = 0;
  for (const Json& setting : settings.as_array()) {
    if (part_of(setting) != DataPart::kTrain) continue;
    const TemporaryDirectory cache;
    const RunConfig config = config_of(setting, cache.path());
    const std::int64_t samples = setting.find("samples")->as_integer();
    const auto source = make_training_source(config, request_of(samples));
    std::vector<std::int32_t> window(static_cast<std::size_t>(source->length()) + 1);
    source->read(0, {window, {}});
    EXPECT_EQ(std::vector<std::int64_t>(window.begin(), window.end()),
              flat_integers(*setting.find("windows")->find("head")));
    ++compared;
  }
  EXPECT_GE(compared, 20);
}

TEST(MegatronOrder, pieces_of_documents_tell_where_they_begin) {
  const auto file = std::make_shared<const IndexedFile>(corpus_prefix("gaps"));
  const MegatronRequest request{{0, file->sequences()}, 40, 20, 2};
  auto built = std::make_unique<MegatronIndex>(MegatronIndex::build(*file, request));
  const MegatronSource source(Corpus(file), 40, std::move(built));
  std::vector<std::int32_t> tokens(41), begins(41), again(41);
  for (std::int64_t s = 0; s < source.count(); ++s) {
    source.read(s, {tokens, begins});
    source.read(s, {again, {}});
    EXPECT_EQ(tokens, again);
    for (std::int32_t i = 0; i < 41; ++i) {
      const auto dot = source.describe(s, i).find("token id ");
      EXPECT_EQ(source.describe(s, i).substr(dot), fmt::format("token id {}", tokens[i]));
      // A document's first token, and nothing else, begins one, but for the window's first.
      const bool begins_here = source.describe(s, i).find("position 0:") != std::string::npos;
      EXPECT_EQ(begins[i] == i, begins_here || i == 0) << s << " " << i;
      if (i > 0 && begins[i] != i) {
        EXPECT_EQ(begins[i], begins[i - 1]);
      }
    }
  }
}

class MegatronCacheTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      if (entry.is_regular_file()) found.push_back(entry.path());
    }
    return found;
  }
  std::unique_ptr<MegatronIndex> get(MegatronRequest request) const {
    const fs::path folders[] = {folder_.path()};
    return cached_megatron_index(file_, request, folders);
  }
  static std::string content(const fs::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void expect_right(const MegatronIndex& index) const {
    const MegatronIndex built = MegatronIndex::build(file_, request_);
    EXPECT_EQ(copied(index.document_index), copied(built.document_index));
    EXPECT_EQ(copied(index.sample_position), copied(built.sample_position));
    EXPECT_EQ(copied(index.sample_offset), copied(built.sample_offset));
    EXPECT_EQ(copied(index.shuffle_index), copied(built.shuffle_index));
  }
  TemporaryDirectory folder_;
  IndexedFile file_{corpus_prefix("small")};
  MegatronRequest request_{{0, 61}, 16, 200, 42};
};

TEST_F(MegatronCacheTest, is_written_once_and_read_again) {
  expect_right(*get(request_));
  const auto first = files();
  ASSERT_EQ(first.size(), 1U);
  const auto written = fs::last_write_time(first[0]);
  expect_right(*get(request_));
  EXPECT_EQ(files(), first);
  EXPECT_EQ(fs::last_write_time(first[0]), written);
}

TEST_F(MegatronCacheTest, every_part_of_the_request_has_a_file_of_its_own) {
  get(request_);
  for (const auto& change : std::vector<MegatronRequest>{{{0, 60}, 16, 200, 42},
                                                         {{1, 61}, 16, 200, 42},
                                                         {{0, 61}, 17, 200, 42},
                                                         {{0, 61}, 16, 201, 42},
                                                         {{0, 61}, 16, 200, 43}}) {
    const std::size_t before = files().size();
    get(change);
    EXPECT_EQ(files().size(), before + 1);
  }
}

TEST_F(MegatronCacheTest, a_damaged_file_is_built_again) {
  get(request_);
  const fs::path path = files().at(0);
  const std::string good = content(path);
  const auto try_with = [&](const std::string& bad) {
    { std::ofstream(path, std::ios::binary | std::ios::trunc) << bad; }
    expect_right(*get(request_));
    EXPECT_EQ(content(path), good);
  };
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{20}, std::size_t{50}, std::size_t{81}, std::size_t{95},
        std::size_t{96}, good.size() / 2, good.size() - 1}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x40);
    try_with(bad);
  }
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{50}, std::size_t{96}, good.size() - 1}) {
    try_with(good.substr(0, size));
  }
  try_with(good + "x");
}

TEST_F(MegatronCacheTest, where_nothing_can_be_written_the_order_is_kept_in_memory) {
  const fs::path folders[] = {folder_.write("a file", "x"), "/proc/nowhere"};
  expect_right(*cached_megatron_index(file_, request_, folders));
}

TEST_F(MegatronCacheTest, the_next_folder_is_used_where_the_first_cannot_be_written) {
  const fs::path folders[] = {folder_.write("a file", "x"), folder_ / "second"};
  expect_right(*cached_megatron_index(file_, request_, folders));
  EXPECT_FALSE(fs::is_empty(folder_ / "second"));
}

TEST_F(MegatronCacheTest, builders_that_start_together_leave_one_whole_file) {
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<MegatronIndex>> got(6);
  for (auto& index : got) threads.emplace_back([&] { index = get(request_); });
  for (auto& thread : threads) thread.join();
  for (const auto& index : got) expect_right(*index);
  EXPECT_EQ(files().size(), 1U);
}

TEST(MegatronOrder, refuses_a_seed_that_numpy_does_not_take) {
  const TemporaryDirectory cache;
  RunConfig config;
  config.data.order = SampleOrderKind::kMegatron;
  config.data.cache_directory = cache.path().string();
  config.data.sequence_length = 8;
  config.data.train.blend = {{1.0, corpus_prefix("small")}};
  for (const std::int64_t seed : {std::int64_t{-1}, std::int64_t{1} << 32}) {
    config.data.seed = seed;
    EXPECT_THROW(make_training_source(config, request_of(10)), ConfigError);
  }
}

}  // namespace
}  // namespace trireme
