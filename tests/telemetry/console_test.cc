#include "telemetry/console.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trireme {
namespace {

StepLine example() {
  StepLine line;
  line.step = 120;
  line.loss = 3.45123;
  line.grad_norm = 0.9821;
  line.lr = 3e-4;
  line.tokens_per_second = 12345;
  line.mfu = 0.3816;
  line.memory_bytes = 1320702443;
  return line;
}

TEST(Console, a_step_reads_like_this) {
  EXPECT_EQ(
      step_text(example(), 5000, 3725),
      "step  120/5000 | loss 3.4512 | grad norm 0.982 | lr 3.00e-04 | 12.3k tokens/s | MFU 38.2% | "
      "memory 1.23 GiB | 1h02m left");
}

TEST(Console, what_is_unknown_is_left_out_or_marked) {
  StepLine line = example();
  line.mfu.reset();
  line.loss = std::numeric_limits<double>::quiet_NaN();
  line.grad_norm = std::numeric_limits<double>::infinity();
  EXPECT_EQ(step_text(line, 5000, -1),
            "step  120/5000 | loss nan | grad norm inf | lr 3.00e-04 | 12.3k tokens/s | memory "
            "1.23 GiB | ? left");
}

TEST(Console, a_step_tells_of_the_z_loss_and_of_noise_where_they_are_measured) {
  StepLine line = example();
  line.logit_z_loss = 0.00314159;
  line.noise_scale = 1234.5;
  const std::string text = step_text(line, 5000, -1);
  EXPECT_NE(text.find("tokens/s | logit z 3.14e-03 | noise scale 1.23e+03 | MFU"),
            std::string::npos)
      << text;
}

TEST(Console, an_evaluation_names_the_validation_loss) {
  EXPECT_EQ(evaluation_text({120, 3.4012, 30.0002, 1'050'000}, 5000),
            "step  120/5000 | validation loss 3.4012 | perplexity 30 | 1.05M tokens");
  EXPECT_EQ(evaluation_text({120, 3.4012, 30.0002, 1'050'000, "web"}, 5000),
            "step  120/5000 | validation loss of web 3.4012 | perplexity 30 | 1.05M tokens");
}

TEST(Console, a_sample_is_one_line_of_prompt_and_continuation) {
  EXPECT_EQ(sample_text({7, "Once", " upon\na \x1b[31mtime"}, 10),
            "step  7/10 | sample: Once upon\\na \\x1b[31mtime");
}

TEST(Console, tables_align_their_columns) {
  const std::string header[] = {"what", "tensors", "share"};
  const std::vector<std::string> rows[] = {{"embedding", "1", "33.3%"}, {"all", "1,000", "100.0%"}};
  const Align columns[] = {Align::kLeft, Align::kRight, Align::kRight};
  EXPECT_EQ(table_text(header, rows, columns),
            "  what       tensors   share\n"
            "  embedding        1   33.3%\n"
            "  all          1,000  100.0%\n");
}

TEST(Console, a_table_counts_characters_rather_than_bytes) {
  const std::string header[] = {"a", "b"};
  const std::vector<std::string> rows[] = {{"µµ", "x"}, {"abc", "y"}};
  const Align columns[] = {Align::kLeft, Align::kLeft};
  EXPECT_EQ(table_text(header, rows, columns), "  a    b\n  µµ   x\n  abc  y\n");
}

TEST(Console, memory_ends_with_the_share_of_the_device) {
  const MemoryItem items[] = {{"parameters", 1 << 30}, {"activations", 1 << 20}};
  EXPECT_EQ(memory_text(items, std::int64_t{2} << 30),
            "  memory          bytes\n"
            "  parameters   1.00 GiB\n"
            "  activations  1.00 MiB\n"
            "  total        1.00 GiB\n"
            "  50.0% of the 2.00 GiB that this rank may use\n");
  EXPECT_EQ(memory_text(items, 0).find('%'), std::string::npos);
}

TEST(Console, the_batch_shows_how_it_is_made) {
  BatchArithmetic batch{2, 2, 2, 128, {{1000, 8}}, 16000};
  EXPECT_EQ(batch_text(batch),
            "  batch     8 global = 2 micro x 2 accumulation x 2 data ranks\n"
            "  tokens    1,024 a step = 8 samples x 128\n"
            "  training  1,000 steps, 1.02M tokens, 0.50 epochs of 16,000 windows\n");
  batch.windows = 0;
  EXPECT_EQ(batch_text(batch).find("epochs"), std::string::npos);
  batch.pass = 1;
  EXPECT_NE(batch_text(batch).find("2 data ranks, computed 1 at a time\n"), std::string::npos);
}

TEST(Console, a_ramp_has_a_line_with_each_size_and_the_tokens_of_all_steps) {
  EXPECT_EQ(batch_text({2, 2, 2, 128, {{10, 4}, {20, 8}}, 100}),
            "  batch     8 global = 2 micro x 2 accumulation x 2 data ranks\n"
            "  tokens    1,024 a step = 8 samples x 128\n"
            "  ramp      4 from step 1 on (accumulation 1), 8 from step 11 on (accumulation 2)\n"
            "  training  30 steps, 25.6k tokens, 2.00 epochs of 100 windows\n");
}

TEST(Console, many_ranks_are_shown_by_host) {
  std::vector<RankPlacement> places;
  for (std::int64_t rank = 0; rank < 72; ++rank)
    places.push_back({rank, rank < 40 ? "alpha" : "beta", "0-3", 4, "CPU"});
  EXPECT_EQ(placements_text(places),
            "   rank  host   cores  threads  device\n"
            "   0-39  alpha               4  CPU\n"
            "  40-71  beta                4  CPU\n");
  EXPECT_EQ(placements_text(std::span(places).first(1)),
            "  rank  host   cores  threads  device\n"
            "     0  alpha  0-3          4  CPU\n");
}

}  // namespace
}  // namespace trireme
