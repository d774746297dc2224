#include "dataset/loader.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "dataset/evaluation_batches.h"
#include "dataset/sample_order.h"
#include "token_fixture.h"

namespace trireme {
namespace {

constexpr std::int64_t kVocab = 100;

std::shared_ptr<const SampleSource> window_source(
    const std::string& prefix, std::int64_t tokens,
    WindowSource::Order order = WindowSource::Order::kSequential) {
  return std::make_shared<WindowSource>(Corpus(std::make_shared<IndexedFile>(prefix)), tokens,
                                        order, WindowSource::Shuffle{7, 0});
}

std::vector<std::int32_t> values(const ConstTensorView& view) {
  const auto* data = view.as<std::int32_t>();
  return {data, data + view.count()};
}

std::vector<std::int32_t> rows_of(const StepBatch& batch) {
  std::vector<std::int32_t> all;
  for (const MicroBatch& micro : batch.micro_batches) {
    const auto ids = values(micro.input_ids);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}

class LoaderTest : public ::testing::Test {
 protected:
  TemporaryDirectory folder_;
  // 12 windows of 4 tokens; window i begins with token 4 i.
  std::string prefix_ = token_file(counting_documents({5, 1, 20, 0, 23})).write(folder_, "tokens");
};

TEST_F(LoaderTest, inputs_are_the_first_tokens_and_targets_the_last) {
  Loader loader(window_source(prefix_, 4), {}, {2, 1, 2, 0, 1, 4}, -1, kVocab);
  const StepBatch batch = loader.next();
  ASSERT_EQ(batch.micro_batches.size(), 2U);
  EXPECT_EQ(values(batch.micro_batches[0].input_ids), (std::vector<std::int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(values(batch.micro_batches[0].targets), (std::vector<std::int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(values(batch.micro_batches[1].input_ids), (std::vector<std::int32_t>{4, 5, 6, 7}));
  EXPECT_EQ(values(batch.micro_batches[1].positions), (std::vector<std::int32_t>{0, 1, 2, 3}));
  EXPECT_FALSE(batch.micro_batches[0].first_key.given());
  EXPECT_EQ(batch.target_count, 8);
}

TEST_F(LoaderTest, every_cut_of_a_global_batch_holds_the_same_samples_in_the_same_order) {
  constexpr std::int64_t kGlobal = 12, kSteps = 3;
  const auto source = window_source(prefix_, 4, WindowSource::Order::kShuffled);
  // What sample s of step n begins with, wherever it lands.
  std::vector<std::vector<std::int32_t>> expected(kSteps, std::vector<std::int32_t>(kGlobal));
  for (std::int64_t s = 0; s < kSteps * kGlobal; ++s) {
    std::vector<std::int32_t> tokens(5);
    source->read(s, {tokens, {}});
    expected[s / kGlobal][s % kGlobal] = tokens[0];
  }
  for (const std::int64_t micro : {1, 2, 3, 4, 6, 12}) {
    for (std::int64_t ranks = 1; ranks <= kGlobal / micro; ++ranks) {
      if (kGlobal % (micro * ranks) != 0) continue;
      std::vector<std::vector<std::int32_t>> seen(kSteps, std::vector<std::int32_t>(kGlobal, -1));
      for (int rank = 0; rank < ranks; ++rank) {
        const std::int64_t accumulation = kGlobal / micro / ranks;
        Loader loader(source, {}, {kGlobal, micro, accumulation, rank, static_cast<int>(ranks), 4},
                      -1, kVocab);
        for (auto& step : seen) {
          const StepBatch batch = loader.next();
          for (std::int64_t m = 0; m < accumulation; ++m) {
            const auto ids = values(batch.micro_batches[m].input_ids);
            for (std::int64_t row = 0; row < micro; ++row) {
              // The inverse of: micro-batch floor(s / (micro ranks)), rank floor(s / micro) mod
              // ranks.
              auto& place = step[m * micro * ranks + rank * micro + row];
              EXPECT_EQ(place, -1);
              place = ids[row * 4];
            }
          }
        }
      }
      EXPECT_EQ(seen, expected) << "micro " << micro << ", " << ranks << " ranks";
    }
  }
}

TEST_F(LoaderTest, a_seek_gives_what_an_unbroken_run_would_have_read) {
  const auto source = window_source(prefix_, 4, WindowSource::Order::kShuffled);
  const BatchShape shape{5, 5, 1, 0, 1, 4};
  Loader unbroken(source, {}, shape, -1, kVocab);
  std::vector<std::vector<std::int32_t>> steps;
  for (int i = 0; i < 8; ++i) steps.push_back(rows_of(unbroken.next()));
  EXPECT_NE(steps[0], steps[1]);
  for (int i = 7; i >= 0; --i) {
    Loader resumed(source, {}, shape, -1, kVocab);
    resumed.seek(5 * i);
    for (int k = i; k < 8; ++k) EXPECT_EQ(rows_of(resumed.next()), steps[k]);
    resumed.seek(0);
    EXPECT_EQ(rows_of(resumed.next()), steps[0]);
  }
}

TEST_F(LoaderTest, a_ramp_gives_each_step_what_follows_the_one_before) {
  const auto source = window_source(prefix_, 4, WindowSource::Order::kShuffled);
  // Of 4 tokens a sample: from sample 7 on 8, which the steps meet at 8; from 22 on 2, at 24.
  const BatchRamp ramp(GlobalBatch({{0, 4}, {28, 8}, {88, 2}}), 4);
  const std::vector<std::int64_t> begins = {0, 4, 8, 16, 24, 26, 28};
  for (int rank = 0; rank < 2; ++rank) {
    for (const int lookahead : {1, 2}) {
      const BatchShape shape{ramp, 1, 4, rank, 2, 4, {}, lookahead};
      Loader loader(source, {}, shape, -1, kVocab);
      for (std::size_t from = 0; from + 1 < begins.size(); ++from) {
        loader.seek(begins[from]);
        for (std::size_t step = from; step + 1 < begins.size(); ++step) {
          std::vector<std::int32_t> expected, tokens(5);
          for (std::int64_t s = begins[step] + rank; s < begins[step + 1]; s += 2) {
            source->read(s, {tokens, {}});
            expected.insert(expected.end(), tokens.begin(), tokens.end() - 1);
          }
          const std::int64_t ahead = loader.target_count(1);
          const StepBatch batch = loader.next();
          EXPECT_EQ(rows_of(batch), expected) << "step " << step << " of a start at " << from;
          EXPECT_EQ(batch.target_count, std::ssize(expected));
          EXPECT_EQ(ahead, batch.target_count);
        }
      }
    }
  }
}

TEST_F(LoaderTest, a_step_stays_whole_while_the_next_is_built) {
  Loader loader(window_source(prefix_, 4), {}, {2, 2, 1, 0, 1, 4}, -1, kVocab);
  const StepBatch first = loader.next();
  const auto* address = first.micro_batches[0].input_ids.data;
  EXPECT_EQ(rows_of(first), (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  const StepBatch second = loader.next();
  EXPECT_NE(second.micro_batches[0].input_ids.data, address);
  EXPECT_EQ(loader.next().micro_batches[0].input_ids.data, address);
}

TEST_F(LoaderTest, as_many_steps_stay_whole_and_are_counted_as_it_looks_ahead) {
  RunConfig::Data data;
  data.mask_eod_loss = true;  // 10 and 17 are the ends: each of another step
  const auto source = window_source(prefix_, 4);
  Loader loader(source, data, {1, 1, 1, 0, 1, 4, {}, 2}, 10, kVocab);
  Loader plain(source, data, {1, 1, 1, 0, 1, 4}, 10, kVocab);
  std::vector<std::vector<std::int32_t>> rows;
  std::vector<std::int64_t> counts;
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(plain.target_count(1), plain.target_count(1));
    counts.push_back(plain.target_count(1));
    const StepBatch batch = plain.next();
    EXPECT_EQ(batch.target_count, counts.back());
    rows.push_back(rows_of(batch));
  }
  EXPECT_EQ(counts[2], 3);
  EXPECT_EQ(counts[3], 4);
  StepBatch before = loader.next();
  for (int i = 1; i < 7; ++i) {
    const StepBatch now = loader.next();
    EXPECT_EQ(loader.target_count(1), counts[i + 1]);
    EXPECT_EQ(loader.target_count(2), counts[i + 2]);  // both are built by now
    EXPECT_EQ(rows_of(before), rows[i - 1]);
    EXPECT_EQ(rows_of(now), rows[i]);
    before = now;
  }
  loader.seek(1);
  EXPECT_EQ(loader.target_count(2), counts[2]);
  EXPECT_EQ(rows_of(loader.next()), rows[1]);
  EXPECT_THROW(static_cast<void>(loader.target_count(3)), InternalError);
}

TEST_F(LoaderTest, a_document_mask_restarts_positions_where_documents_begin) {
  RunConfig::Data data;
  data.document_mask = true;
  Loader loader(window_source(prefix_, 8), data, {1, 1, 1, 0, 1, 8}, -1, kVocab);
  const MicroBatch first = loader.next().micro_batches[0];  // documents begin at 0, 5, 6
  EXPECT_EQ(values(first.first_key), (std::vector<std::int32_t>{0, 0, 0, 0, 0, 5, 6, 6}));
  EXPECT_EQ(values(first.positions), (std::vector<std::int32_t>{0, 1, 2, 3, 4, 0, 0, 1}));
  EXPECT_EQ(first.target_count, 8);
  const MicroBatch second = loader.next().micro_batches[0];  // inside the third
  EXPECT_EQ(values(second.first_key), std::vector<std::int32_t>(8, 0));
  EXPECT_EQ(values(second.positions), (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  loader.next();
  const MicroBatch fourth =
      loader.next().micro_batches[0];  // 24 ... 31: the last document begins at 26
  EXPECT_EQ(values(fourth.first_key), (std::vector<std::int32_t>{0, 0, 2, 2, 2, 2, 2, 2}));
}

TEST_F(LoaderTest, no_loss_where_the_input_is_the_end_token) {
  const std::string prefix = token_file({{5, 9, 9, 1, 9}}).write(folder_, "ends");
  RunConfig::Data data;
  data.mask_eod_loss = true;
  Loader loader(window_source(prefix, 4), data, {1, 1, 1, 0, 1, 4}, 9, kVocab);
  const StepBatch batch = loader.next();
  EXPECT_EQ(values(batch.micro_batches[0].targets), (std::vector<std::int32_t>{9, -1, -1, 9}));
  EXPECT_EQ(batch.target_count, 2);
  EXPECT_EQ(batch.micro_batches[0].target_count, 2);
  EXPECT_THROW(Loader(window_source(prefix, 4), data, {1, 1, 1, 0, 1, 4}, -1, kVocab), ConfigError);
}

TEST_F(LoaderTest, what_the_mask_leaves_out_is_no_target_on_any_context_rank) {
  std::string mask(49, '\0');
  for (const std::size_t counts : {1, 3, 4, 8, 9}) mask[counts] = '\1';
  folder_.write("tokens.mask", mask);
  const auto source = window_source(prefix_, 4);
  RunConfig::Data data;
  data.mask_eod_loss = true;
  Loader loader(source, data, {1, 1, 1, 0, 1, 4}, 8, kVocab);
  const std::vector<std::vector<std::int32_t>> targets = {
      {1, -1, 3, 4}, {-1, -1, -1, 8}, {-1, -1, -1, -1}, {-1, -1, -1, -1}};
  for (const auto& expected : targets) {
    const std::int64_t ahead = loader.target_count(1);
    const StepBatch batch = loader.next();
    EXPECT_EQ(values(batch.micro_batches[0].targets), expected);
    EXPECT_EQ(batch.target_count, 4 - std::count(expected.begin(), expected.end(), -1));
    EXPECT_EQ(ahead, batch.target_count);
  }
  std::int64_t counted = 0;
  for (int rank = 0; rank < 2; ++rank) {
    Loader half(source, {}, {1, 1, 1, 0, 1, 4, {2, rank}}, -1, kVocab);
    counted += half.next().target_count;
  }
  EXPECT_EQ(counted, 3);
  EvaluationBatches evaluation(source, {}, {1, 1, 1, 0, 1, 4}, 3, -1, kVocab);
  EXPECT_EQ(values(evaluation.read(2).targets), (std::vector<std::int32_t>{9, -1, -1, -1}));
}

TEST_F(LoaderTest, an_id_outside_the_vocabulary_names_file_document_and_position) {
  const std::string prefix =
      token_file({{1, 2}, {3, 4, 70}, {5, 6, 7, 8}}).write(folder_, "outside");
  Loader loader(window_source(prefix, 2), {}, {1, 1, 1, 0, 1, 2}, -1, 70);
  loader.next();
  for (int i = 0; i < 2; ++i) {  // and says so again
    try {
      loader.next();
      FAIL();
    } catch (const DataError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("outside.bin: document 1, position 2: token id 70"), std::string::npos)
          << text;
    }
  }
  loader.seek(3);
  EXPECT_EQ(rows_of(loader.next()), (std::vector<std::int32_t>{6, 7}));
}

TEST_F(LoaderTest, a_negative_id_and_one_beyond_32_bits_are_outside) {
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{1} << 32}) {
    const std::string prefix = token_file<std::int64_t>({{1, bad, 2}}, 5).write(folder_, "wide");
    Loader loader(window_source(prefix, 2), {}, {1, 1, 1, 0, 1, 2}, -1, kVocab);
    try {
      loader.next();
      FAIL() << bad;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(fmt::format("token id {}", bad)), std::string::npos)
          << error.what();
    }
  }
}

TEST_F(LoaderTest, evaluation_reads_each_sample_once_and_pads_to_equal_passes) {
  const auto source = window_source(prefix_, 4);  // 12 windows
  for (const int ranks : {1, 2, 3, 5}) {
    for (const std::int64_t micro : {1, 2, 3}) {
      for (const std::int64_t batches : {1, 2, 100}) {
        const std::int64_t global = micro * ranks,
                           expected = std::min<std::int64_t>(12, batches * global);
        std::vector<int> seen(12, 0);
        std::int64_t targets = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          EvaluationBatches evaluation(source, {}, {global, micro, 1, rank, ranks, 4}, batches, -1,
                                       kVocab);
          EXPECT_EQ(evaluation.samples(), expected);
          EXPECT_EQ(evaluation.passes(), (expected + global - 1) / global);
          for (std::int64_t pass = 0; pass < evaluation.passes(); ++pass) {
            const MicroBatch& batch = evaluation.read(pass);
            targets += batch.target_count;
            const auto ids = values(batch.input_ids), wanted = values(batch.targets);
            for (std::int64_t row = 0; row < micro; ++row) {
              if (wanted[row * 4] >= 0) ++seen[ids[row * 4] / 4];
            }
          }
        }
        EXPECT_EQ(targets, expected * 4);
        for (std::int64_t i = 0; i < 12; ++i) EXPECT_EQ(seen[i], i < expected ? 1 : 0) << i;
      }
    }
  }
}

}  // namespace
}  // namespace trireme
