#include "dataset/sources.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "base/file.h"
#include "dataset/loader.h"
#include "token_fixture.h"

namespace trireme {
namespace {

std::vector<std::int32_t> tokens_of(const SampleSource& source, std::int64_t sample) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(source.length()) + 1);
  source.read(sample, {tokens, {}});
  return tokens;
}

SourceRequest request_of(std::int64_t samples, std::int64_t vocab_size = 1000) {
  SourceRequest request;
  request.total_samples = samples;
  request.vocab_size = vocab_size;
  return request;
}

std::string message_of(const std::function<void()>& work, ExitCode code) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing thrown";
  return "";
}

class SourcesTest : public ::testing::Test {
 protected:
  SourcesTest() {
    config_.run.directory = (folder_ / "run").string();
    config_.data.sequence_length = 4;
    config_.data.train.blend = {{1.0, write("a", {10, 20, 11})}};
  }
  std::string write(const std::string& name, const std::vector<std::int64_t>& lengths) const {
    return token_file(counting_documents(lengths)).write(folder_, name);
  }
  TemporaryDirectory folder_;
  RunConfig config_;
};

TEST_F(SourcesTest, a_mask_that_does_not_fit_is_refused_wherever_its_tokens_are_read) {
  const std::string prefix = config_.data.train.blend[0].second, valid = write("valid", {20});
  config_.data.validation.emplace().sets.emplace_back().second.blend = {{1.0, valid}};
  const auto refused = [&](const std::string& file, const char* word, const auto& work) {
    const std::string message = message_of(work, ExitCode::kData);
    EXPECT_TRUE(message.starts_with(file + ".mask: ")) << message;
    EXPECT_NE(message.find(word), std::string::npos) << message;
  };
  write_file_atomically(prefix + ".mask", std::string(40, '\1'));
  write_file_atomically(valid + ".mask", std::string(21, '\1'));
  refused(prefix, "has 40 bytes", [&] { training_facts(config_); });
  refused(prefix, "41 tokens", [&] { make_training_source(config_, request_of(1)); });
  refused(valid, "has 21 bytes", [&] { check_validation_sources(config_); });
  std::string bytes(41, '\1');
  bytes[17] = '\2';
  write_file_atomically(prefix + ".mask", bytes);
  check_training_source(config_, 1);
  refused(prefix, "byte 17 is 2", [&] { check_training_tokens(config_, request_of(1)); });
  SourceRequest unread = request_of(1);
  unread.check = TokenCheck::kOnRead;
  const auto source = make_training_source(config_, unread);
  std::vector<std::int32_t> tokens(5);
  std::vector<std::uint8_t> counted(5);
  refused(prefix, "byte 17 is 2", [&] {
    for (std::int64_t s = 0; s < source->count(); ++s) source->read(s, {tokens, {}, counted});
  });
}

TEST_F(SourcesTest, in_every_order_and_blend_a_token_takes_its_mask_along) {
  // Token k of "a" is k, of "b" 100 + k; every third counts.
  const std::string a = config_.data.train.blend[0].second;
  std::vector<std::vector<std::int64_t>> others(3, std::vector<std::int64_t>(10));
  for (std::int64_t k = 0; k < 30; ++k) others[k / 10][k % 10] = 100 + k;
  const std::string b = token_file(others).write(folder_, "b");
  std::string mask;
  for (int k = 0; k < 41; ++k) mask += k % 3 == 0 ? '\1' : '\0';
  write_file_atomically(a + ".mask", mask);
  write_file_atomically(b + ".mask", mask.substr(0, 30));
  config_.data.train.blend = {{1.0, a}, {2.0, b}};
  for (const auto order :
       {SampleOrderKind::kShuffled, SampleOrderKind::kSequential, SampleOrderKind::kMegatron}) {
    config_.data.order = order;
    SourceRequest request = request_of(12);
    request.vocab_size = 200;
    const auto source = make_training_source(config_, request);
    std::vector<std::int32_t> tokens(5);
    std::vector<std::uint8_t> counted(5);
    for (std::int64_t s = 0; s < 12; ++s) {
      source->read(s, {tokens, {}, counted});
      for (std::size_t i = 0; i < 5; ++i)
        EXPECT_EQ(counted[i], tokens[i] % 100 % 3 == 0 ? 1 : 0) << tokens[i];
    }
  }
}

TEST_F(SourcesTest, packed_windows_are_taken_whole_or_refused) {
  // Three windows of 4 tokens, the last one longer by the last target; documents hold two
  // sequences.
  TokenFile file = token_file(counting_documents({3, 1, 2, 2, 1, 4}));
  file.bounds = {0, 2, 4, 6};
  file.bounds_count = 4;
  const std::string prefix = file.write(folder_, "packed");
  write_file_atomically(
      prefix + ".json",
      R"({"documents": 3, "tokens": 13, "largest_id": 12, "packed": 4, "tokenizer_hash": "byte"})");
  config_.data.train.blend = {{1.0, prefix}};
  config_.data.order = SampleOrderKind::kSequential;
  EXPECT_EQ(make_training_source(config_, request_of(1))->count(), 3);
  config_.data.split = "2,1";  // the target behind the second window is there too
  const auto first = make_training_source(config_, request_of(1));
  const auto last = make_validation_sources(config_, request_of(1)).front().source;
  EXPECT_EQ(first->count(), 2);
  EXPECT_EQ(last->count(), 1);
  EXPECT_EQ(tokens_of(*first, 1), (std::vector<std::int32_t>{4, 5, 6, 7, 8}));
  EXPECT_EQ(tokens_of(*last, 0), (std::vector<std::int32_t>{8, 9, 10, 11, 12}));
  config_.data.order = SampleOrderKind::kMegatron;
  EXPECT_NE(message_of([&] { training_facts(config_); }, ExitCode::kConfig).find("data.order"),
            std::string::npos);
  config_.data.order = SampleOrderKind::kShuffled;
  config_.data.sequence_length = 5;
  EXPECT_NE(message_of([&] { training_facts(config_); }, ExitCode::kConfig)
                .find("packed in windows of 4"),
            std::string::npos);
}

TEST_F(SourcesTest, another_mask_is_other_data) {
  const std::string prefix = config_.data.train.blend[0].second;
  const Json bare = data_fingerprints(config_);
  write_file_atomically(prefix + ".mask", std::string(41, '\1'));
  const Json saved = data_fingerprints(config_);
  EXPECT_TRUE(replaced_data(saved, data_fingerprints(config_)).empty());
  write_file_atomically(prefix + ".mask", std::string(40, '\1') + std::string(1, '\0'));
  EXPECT_EQ(replaced_data(saved, data_fingerprints(config_)).size(), 1U);
  EXPECT_EQ(replaced_data(bare, saved).size(), 1U);
}

TEST_F(SourcesTest, other_data_under_the_same_name_are_told_from_a_checkpoints) {
  const std::string prefix = config_.data.train.blend[0].second;
  const Json saved = data_fingerprints(config_);
  EXPECT_TRUE(replaced_data(saved, data_fingerprints(config_)).empty());
  EXPECT_TRUE(replaced_data(Json(), saved).empty()) << "a checkpoint that says nothing";
  EXPECT_TRUE(replaced_data(Json::object(), saved).empty()) << "data under a new name";
  write("a", {10, 20, 12});
  std::vector<std::string> lines = replaced_data(saved, data_fingerprints(config_));
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find(prefix + ".bin"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("tokens 41 -> 42"), std::string::npos) << lines[0];
  EXPECT_EQ(lines[0].find("documents"), std::string::npos) << lines[0];
  // As many of each, and other ones.
  std::vector<std::vector<std::int64_t>> documents = counting_documents({10, 20, 11});
  documents.back().back() += 1;
  token_file(documents).write(folder_, "a");
  lines = replaced_data(saved, data_fingerprints(config_));
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("other ones"), std::string::npos) << lines[0];
}

TEST_F(SourcesTest, a_source_is_checked_for_ids_outside_the_vocabulary_without_being_made) {
  SourceRequest request = request_of(1, 41);
  check_training_tokens(config_, request);
  request.vocab_size = 40;
  message_of([&] { check_training_tokens(config_, request); }, ExitCode::kData);
  config_.data.validation = ValidationSets{{{"", DataSource{}}}};
  config_.data.validation->sets[0].second.blend = {{1.0, write("v", {50})}};
  request.vocab_size = 41;
  EXPECT_NE(
      message_of([&] { check_validation_tokens(config_, request); }, ExitCode::kData).find("v.bin"),
      std::string::npos);
}

TEST_F(SourcesTest, facts_count_one_epoch_of_all_sources) {
  config_.data.train.blend.emplace_back(2.0, write("b", {13}));
  const DataFacts facts = training_facts(config_);
  EXPECT_EQ(facts.documents, 4);
  EXPECT_EQ(facts.tokens, 54);
  EXPECT_EQ(facts.windows, 10 + 3);
  EXPECT_FALSE(facts.synthetic);
  config_.data.train = {};
  config_.data.train.synthetic = true;
  EXPECT_TRUE(training_facts(config_).synthetic);
}

TEST_F(SourcesTest, a_longer_run_never_changes_earlier_samples) {
  config_.data.train.blend.emplace_back(0.7, write("b", {13, 9}));
  for (const SampleOrderKind order : {SampleOrderKind::kShuffled, SampleOrderKind::kSequential}) {
    config_.data.order = order;
    const auto shorter = make_training_source(config_, request_of(20)),
               longer = make_training_source(config_, request_of(2000));
    for (std::int64_t s = 0; s < 60; ++s) EXPECT_EQ(tokens_of(*shorter, s), tokens_of(*longer, s));
  }
}

TEST_F(SourcesTest, blends_follow_the_greedy_rule) {
  config_.data.order = SampleOrderKind::kSequential;
  config_.data.train.blend = {{2.0, write("a", {41})}, {1.0, write("b", {9})}};
  const auto source = make_training_source(config_, request_of(8));
  // w = (2/3, 1/3): a b a a b a a b; b has two windows and goes around.
  std::vector<std::string> names;
  std::vector<std::int32_t> first;
  for (std::int64_t s = 0; s < 8; ++s) {
    names.push_back(source->source_name(s).substr(source->source_name(s).size() - 1));
    first.push_back(tokens_of(*source, s)[0]);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b", "a", "a", "b", "a", "a", "b"}));
  EXPECT_EQ(first, (std::vector<std::int32_t>{0, 0, 4, 8, 4, 12, 16, 0}));
}

TEST_F(SourcesTest, a_split_cuts_the_documents_between_training_and_validation) {
  config_.data.order = SampleOrderKind::kSequential;
  config_.data.train.blend = {{1.0, write("a", {10, 20, 11, 9})}};
  config_.data.split = "2,1,1";
  EXPECT_EQ(training_facts(config_).documents, 2);
  EXPECT_EQ(training_facts(config_).tokens, 30);
  const auto validation = make_validation_sources(config_, request_of(0)).front().source;
  EXPECT_EQ(validation->count(), 2);
  EXPECT_EQ(tokens_of(*validation, 0)[0], 30);
  EXPECT_EQ(tokens_of(*validation, 1)[0], 34);
  config_.data.split = "200,1,1";  // a share, and of four documents none
  EXPECT_NE(message_of([&] { make_validation_sources(config_, request_of(0)); }, ExitCode::kConfig)
                .find("data.split"),
            std::string::npos);
}

TEST_F(SourcesTest, validation_is_read_in_order_whatever_the_order_of_training) {
  EXPECT_TRUE(make_validation_sources(config_, request_of(0)).empty());
  DataSource data;
  data.blend = {{1.0, write("v", {21})}};
  config_.data.validation = ValidationSets{{{"", data}}};
  for (const auto order :
       {SampleOrderKind::kShuffled, SampleOrderKind::kSequential, SampleOrderKind::kMegatron}) {
    config_.data.order = order;
    const auto source = make_validation_sources(config_, request_of(0)).front().source;
    ASSERT_EQ(source->count(), 5);
    for (std::int64_t s = 0; s < 5; ++s) EXPECT_EQ(tokens_of(*source, s)[0], 4 * s);
  }
}

TEST_F(SourcesTest, sets_with_names_are_each_a_source) {
  DataSource first, second, short_one;
  first.blend = {{1.0, write("first", {21})}};
  second.blend = {{1.0, write("second", {13})}};
  short_one.blend = {{1.0, write("short", {2})}};
  config_.data.validation = ValidationSets{{{"web", first}, {"code", second}}};
  const auto sets = make_validation_sources(config_, request_of(0));
  ASSERT_EQ(sets.size(), 2U);
  EXPECT_EQ(sets[0].name, "web");
  EXPECT_EQ(sets[0].source->count(), 5);
  EXPECT_EQ(sets[1].name, "code");
  EXPECT_EQ(sets[1].source->count(), 3);
  config_.data.validation->sets.emplace_back("short", short_one);
  message_of([&] { check_validation_sources(config_); }, ExitCode::kConfig);
  message_of([&] { make_validation_sources(config_, request_of(0)); }, ExitCode::kConfig);
}

TEST_F(SourcesTest, a_share_of_zero_is_no_validation_data) {
  config_.data.train.blend = {{1.0, write("some", {9, 9, 9, 9})}};
  for (const char* split : {"1", "1,0", "90,0,10"}) {
    config_.data.split = split;
    EXPECT_TRUE(make_validation_sources(config_, request_of(0)).empty()) << split;
    check_validation_sources(config_);
  }
  config_.data.split = "99,1";  // a share, but of four documents none
  message_of([&] { make_validation_sources(config_, request_of(0)); }, ExitCode::kConfig);
  message_of([&] { check_validation_sources(config_); }, ExitCode::kConfig);
}

TEST_F(SourcesTest, what_the_sources_would_refuse_is_found_without_them) {
  const auto both_refuse = [&](std::int64_t samples, const char* word) {
    for (const std::string& message :
         {message_of([&] { check_training_source(config_, samples); }, ExitCode::kConfig),
          message_of([&] { make_training_source(config_, request_of(samples)); },
                     ExitCode::kConfig)}) {
      EXPECT_NE(message.find(word), std::string::npos) << message;
    }
  };
  config_.data.train.blend = {{1.0, write("good", {40})}, {1.0, write("short", {2})}};
  both_refuse(5, "short.bin");
  config_.data.order = SampleOrderKind::kMegatron;
  check_training_source(config_, 5);
  config_.data.seed = std::int64_t{1} << 32;
  both_refuse(5, "data.seed: 4294967296");
  config_.data.seed.reset();
  config_.run.seed = std::int64_t{1} << 32;
  both_refuse(5, "run.seed: 4294967296");
  config_.run.seed = 1;
  both_refuse(std::int64_t{1} << 40, "data.order");
  config_.data.train.blend = {{1.0, write("good", {40})}};
  both_refuse(std::int64_t{1} << 40, "data.order");
  check_training_source(config_, 1 << 20);
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    const std::string name = entry.path().extension().string();
    EXPECT_TRUE(name == ".bin" || name == ".idx") << entry.path() << " was made";
  }
}

TEST_F(SourcesTest, weights_that_leave_a_source_nothing_are_refused) {
  const std::string a = write("a", {40}), b = write("b", {40});
  for (const auto order : {SampleOrderKind::kShuffled, SampleOrderKind::kMegatron}) {
    config_.data.order = order;
    for (const auto& [first, second] :
         {std::pair{1e308, 1e308}, std::pair{1e-320, 1e308}, std::pair{1e-300, 1e300}}) {
      config_.data.train.blend = {{first, a}, {second, b}};
      const auto refused = [&](const auto& work) {
        EXPECT_NE(message_of(work, ExitCode::kConfig).find("data.train: the weight"),
                  std::string::npos);
      };
      refused([&] { check_training_source(config_, 5); });
      refused([&] { make_training_source(config_, request_of(5)); });
    }
    config_.data.train.blend = {{1e-300, a}, {1e-300, b}};
    check_training_source(config_, 5);
  }
}

TEST_F(SourcesTest, an_empty_or_short_corpus_is_the_configs_fault) {
  config_.data.train.blend = {{1.0, write("none", {})}};
  EXPECT_NE(message_of([&] { training_facts(config_); }, ExitCode::kConfig).find("none.bin"),
            std::string::npos);
  config_.data.train.blend = {{1.0, write("short", {2, 2})}};
  EXPECT_NE(message_of([&] { training_facts(config_); }, ExitCode::kConfig).find("short.bin"),
            std::string::npos);
  message_of([&] { make_training_source(config_, request_of(5)); }, ExitCode::kConfig);
  // megatron-core goes around a short corpus; only an empty one has no samples
  config_.data.order = SampleOrderKind::kMegatron;
  EXPECT_EQ(training_facts(config_).windows, 0);
  EXPECT_EQ(make_training_source(config_, request_of(5))->count(), 5);
  config_.data.train.blend = {{1.0, write("none", {0, 0})}};
  message_of([&] { make_training_source(config_, request_of(5)); }, ExitCode::kConfig);
}

TEST_F(SourcesTest, ids_beyond_the_vocabulary_are_found_before_the_start) {
  const auto open = [&](std::int64_t vocab_size) {
    return make_training_source(config_, request_of(5, vocab_size));
  };
  EXPECT_NO_THROW(open(41));  // ids 0 ... 40
  EXPECT_NE(message_of([&] { open(40); }, ExitCode::kData)
                .find("a.bin: document 2, position 10: token id 40"),
            std::string::npos);
  // PREFIX.json is believed where it describes the file.
  folder_.write("a.json", R"({"documents": 3, "tokens": 41, "largest_id": 39})");
  EXPECT_NO_THROW(open(40));
  folder_.write("a.json", R"({"documents": 3, "tokens": 41, "largest_id": 40})");
  message_of([&] { open(40); }, ExitCode::kData);
}

TEST_F(SourcesTest, files_beyond_the_scan_are_checked_as_they_are_read) {
  config_.data.order = SampleOrderKind::kSequential;
  config_.data.scan_bytes = 41 * 4 - 1;
  const auto source = make_training_source(config_, request_of(5, 40));
  Loader loader(source, config_.data, {9, 9, 1, 0, 1, 4}, -1, 40);
  EXPECT_NO_THROW(loader.next());
  EXPECT_NE(message_of([&] { loader.next(); }, ExitCode::kData).find("document 2, position 10"),
            std::string::npos);
  config_.data.scan_bytes = 41 * 4;
  message_of([&] { make_training_source(config_, request_of(5, 40)); }, ExitCode::kData);
  SourceRequest follower = request_of(5, 40);
  follower.check = TokenCheck::kOnRead;
  EXPECT_NO_THROW(make_training_source(config_, follower));
}

TEST_F(SourcesTest, ids_of_another_part_of_the_split_do_not_count) {
  config_.data.split = "2,1";
  EXPECT_NO_THROW(
      make_training_source(config_, request_of(5, 30)));  // the third document holds 30 ... 40
  message_of([&] { make_validation_sources(config_, request_of(5, 30)); }, ExitCode::kData);
}

TEST_F(SourcesTest, synthetic_training_and_validation_differ) {
  config_.data.train = {};
  config_.data.train.synthetic = true;
  config_.data.validation = ValidationSets{{{"", config_.data.train}}};
  const auto training = make_training_source(config_, request_of(5)),
             validation = make_validation_sources(config_, request_of(5)).front().source;
  EXPECT_NE(tokens_of(*training, 0), tokens_of(*validation, 0));
  EXPECT_EQ(training->source_name(0), "synthetic");
}

}  // namespace
}  // namespace trireme
