#include "telemetry/tensorboard.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/file.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

std::string hex_of(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

/// The payloads of a file of records, every length and checksum verified.
std::vector<std::string> payloads_of(std::string_view file) {
  const auto masked = [](std::string_view bytes) {
    const std::uint32_t crc = crc32c(bytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
  };
  const auto word_at = [&](std::size_t at) {
    std::uint32_t word = 0;
    std::memcpy(&word, file.data() + at, 4);
    return word;
  };
  std::vector<std::string> payloads;
  for (std::size_t at = 0; at < file.size();) {
    std::uint64_t size = 0;
    std::memcpy(&size, file.data() + at, 8);
    EXPECT_EQ(word_at(at + 8), masked(file.substr(at, 8)));
    EXPECT_LE(at + 16 + size, file.size());
    payloads.emplace_back(file.substr(at + 12, size));
    EXPECT_EQ(word_at(at + 12 + size), masked(payloads.back()));
    at += 16 + size;
  }
  return payloads;
}

std::string only_file_of(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    files.push_back(entry.path());
  EXPECT_EQ(files.size(), 1U);
  return files.empty() ? "" : files.front().string();
}

TEST(TensorBoard, crc32c_gives_the_published_check_values) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c(""), 0U);
}

// The bytes below were read back by TensorBoard 2.21's EventAccumulator and equal what its
// RecordWriter makes of the same events.
TEST(TensorBoard, records_have_exactly_these_bytes) {
  EXPECT_EQ(hex_of(file_version_record(1.5)),
            "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
  EXPECT_EQ(hex_of(scalars_record(1.5, 300, {{"lm loss", 2.5F}, {"grad-norm", -1.0F}})),
            "300000000000000095f5d05f09000000000000f83f10ac022a220a0e0a076c6d206c6f737315000020400a"
            "100a09677261642d6e6f72"
            "6d15000080bfa9bfbdc4");
  EXPECT_EQ(hex_of(session_start_record(1.5, 11)),
            "0f000000000000006d532b0909000000000000f83f100b3a020801b2012ff1");
}

TEST(TensorBoard, a_run_writes_megatron_tags) {
  const TemporaryDirectory folder;
  {
    TensorBoardWriter writer(folder / "tensorboard", 0, 0, 2);
    StepLine line;
    line.step = 1;
    line.consumed_samples = 8;
    writer.append(line);
    line.step = 2;
    line.consumed_samples = 16;
    line.mfu = 0.5;
    writer.append(line);
    writer.append(EvaluationLine{2, 3, 20, 100});
  }
  const std::string file = only_file_of(folder / "tensorboard");
  EXPECT_NE(file.find("/events.out.tfevents."), std::string::npos);
  const auto payloads = payloads_of(read_file(file));
  ASSERT_EQ(payloads.size(), 4U);
  EXPECT_NE(payloads[0].find("brain.Event:2"), std::string::npos);
  for (const char* tag :
       {"lm loss", "grad-norm", "learning-rate", "iteration-time", "throughput", "batch-size"}) {
    EXPECT_NE(payloads[1].find(tag), std::string::npos) << tag;
  }
  EXPECT_EQ(payloads[1].find("mfu"), std::string::npos) << "unknown values have no event";
  EXPECT_NE(payloads[2].find("mfu"), std::string::npos);
  // Field 2 (wire type 5) behind the tag: 8.0 as a float, in both steps.
  const std::string size = std::string("batch-size\x15", 11) + std::string("\0\0\0A", 4);
  EXPECT_NE(payloads[1].find(size), std::string::npos);
  EXPECT_NE(payloads[2].find(size), std::string::npos);
  EXPECT_NE(payloads[3].find("lm loss validation ppl"), std::string::npos);
}

TEST(TensorBoard, a_resumed_run_declares_later_events_void) {
  const TemporaryDirectory folder;
  { const TensorBoardWriter writer(folder.path() / "tensorboard", 10, 80, 1); }
  const auto payloads = payloads_of(read_file(only_file_of(folder / "tensorboard")));
  ASSERT_EQ(payloads.size(), 2U);
  EXPECT_EQ(hex_of(payloads[1]).substr(18), "100b3a020801") << "step 11, session log, status START";
}

TEST(TensorBoard, a_folder_that_cannot_be_made_is_refused_before_training) {
  const TemporaryDirectory folder;
  folder.write("file", "");
  EXPECT_THROW(TensorBoardWriter(folder / "file/tensorboard", 0, 0, 1), DataError);
}

}  // namespace
}  // namespace trireme
