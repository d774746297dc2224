#include "dataset/indexed_file.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "base/error.h"
#include "token_fixture.h"
#include "tokenizer/indexed_writer.h"

namespace trireme {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

class IndexedFileTest : public ::testing::Test {
 protected:
  /// The message of the DataError that opening `file` throws.
  std::string refusal(const TokenFile& file) const {
    const std::string prefix = file.write(folder_, "bad");
    try {
      IndexedFile opened(prefix);
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("bad."), std::string::npos) << error.what();
      return error.what();
    }
    return "";
  }
  void expect_refused(const TokenFile& file, const std::string& words) const {
    const std::string message = refusal(file);
    EXPECT_NE(message.find(words), std::string::npos)
        << "\"" << message << "\" without \"" << words << "\"";
  }
  TemporaryDirectory folder_;
  TokenFile good_ = token_file(counting_documents({3, 0, 4}));
};

TEST_F(IndexedFileTest, gives_the_tokens_of_all_documents_laid_end_to_end) {
  const IndexedFile file(good_.write(folder_, "good"));
  EXPECT_EQ(file.sequences(), 3);
  EXPECT_EQ(file.documents(), 3);
  EXPECT_EQ(file.tokens(), 7);
  EXPECT_EQ(file.length(2), 4);
  EXPECT_EQ(file.first_token(2), 3);
  EXPECT_EQ(file.first_token(3), 7);
  EXPECT_EQ(file.sequence_of(2), 0);
  EXPECT_EQ(file.sequence_of(3), 2);  // not the empty one
  EXPECT_EQ(file.sequence_of(6), 2);
  std::vector<std::int32_t> ids(4);
  file.read(2, ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{2, 3, 4, 5}));
  EXPECT_EQ(file.describe(5), file.bin_path() + ": document 2, position 2: token id 5");
  EXPECT_FALSE(file.facts());
}

template <class T>
void expect_type(std::uint8_t code, const TemporaryDirectory& folder) {
  const auto low = static_cast<std::int64_t>(std::numeric_limits<T>::min());
  const auto high = static_cast<std::int64_t>(std::numeric_limits<T>::max());
  const IndexedFile file(
      token_file<T>({{0, 1, high}, {low}}, code).write(folder, fmt::format("type{}", code)));
  EXPECT_EQ(file.id_at(2), high);
  EXPECT_EQ(file.id_at(3), low);
  std::vector<std::int32_t> ids(4);
  file.read(0, ids);
  const bool fits = high <= std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(ids, (std::vector<std::int32_t>{0, 1, fits ? static_cast<std::int32_t>(high) : -1,
                                            low < 0 ? -1 : 0}));
  EXPECT_EQ(file.find_outside(0, 4, high), 2);
  EXPECT_EQ(file.find_outside(3, 1, kLargest),
            low < 0 ? std::optional<std::int64_t>(3) : std::nullopt);
}

TEST_F(IndexedFileTest, reads_every_integer_type) {
  expect_type<std::uint8_t>(1, folder_);
  expect_type<std::int8_t>(2, folder_);
  expect_type<std::int16_t>(3, folder_);
  expect_type<std::int32_t>(4, folder_);
  expect_type<std::int64_t>(5, folder_);
  expect_type<std::uint16_t>(8, folder_);
}

TEST_F(IndexedFileTest, refuses_every_truncation) {
  const std::string whole = good_.idx();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    folder_.write("bad.bin", good_.bin);
    folder_.write("bad.idx", whole.substr(0, size));
    EXPECT_THROW(IndexedFile((folder_ / "bad").string()), DataError) << size;
  }
}

TEST_F(IndexedFileTest, refuses_a_wrong_header) {
  TokenFile file = good_;
  file.magic[2] = 'X';
  expect_refused(file, "MMIDIDX");
  file = good_;
  file.version = 2;
  expect_refused(file, "version 2");
  for (const int code : {0, 6, 7, 9, 255}) {
    file = good_;
    file.code = static_cast<std::uint8_t>(code);
    expect_refused(file, fmt::format("dtype code {}", code));
  }
  file = good_;
  file.surplus = "x";
  expect_refused(file, "1 surplus bytes");
  file.surplus = "abc";  // as many as there are modes in multimodal data
  expect_refused(file, "3 surplus bytes");
}

TEST_F(IndexedFileTest, refuses_counts_that_the_file_cannot_hold) {
  // 2^64/12, 2^64/4 and others wrap to small products.
  for (const std::uint64_t count :
       {~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{1} << 62, ~std::uint64_t{0} / 12,
        ~std::uint64_t{0} / 12 + 1, std::uint64_t{1} << 40, std::uint64_t{4}}) {
    TokenFile file = good_;
    file.sequences = count;
    EXPECT_NE(refusal(file), "") << count;
    file = good_;
    file.bounds_count = count + 1;
    EXPECT_NE(refusal(file), "") << count;
  }
  TokenFile none = good_;
  none.bounds_count = 0;
  none.bounds.clear();
  expect_refused(none, "no document bounds");
}

TEST_F(IndexedFileTest, refuses_sequences_that_are_not_there) {
  TokenFile file = good_;
  file.lengths[0] = -1;
  expect_refused(file, "sequence 0 has the length -1");
  file = good_;
  file.lengths[2] = 5;
  expect_refused(file, "past the end");
  file = good_;
  file.bin.resize(file.bin.size() - 1);
  expect_refused(file, "past the end");
  file = good_;
  file.lengths[2] = std::numeric_limits<std::int32_t>::max();
  expect_refused(file, "past the end");
  for (const std::int64_t offset :
       {std::int64_t{0}, std::int64_t{8}, std::int64_t{16}, std::int64_t{-12}, kLargest}) {
    file = good_;
    file.offsets[2] = offset;
    expect_refused(file, fmt::format("sequence 2 begins at byte {}", offset));
  }
  file = good_;
  std::swap(file.offsets[0], file.offsets[2]);
  expect_refused(file, "sequence 0 begins at byte 12");
}

TEST_F(IndexedFileTest, refuses_document_bounds_out_of_order) {
  const std::vector<std::vector<std::int64_t>> wrong = {{1, 1, 2, 3}, {0, 2, 1, 3}, {0, 1, 2, 2},
                                                        {0, 1, 2, 4}, {0, 1, 9, 3}, {-1, 1, 2, 3},
                                                        {0, -1, 2, 3}};
  for (const auto& bounds : wrong) {
    TokenFile file = good_;
    file.bounds = bounds;
    EXPECT_NE(refusal(file), "");
  }
}

TEST_F(IndexedFileTest, names_what_is_missing) {
  folder_.write("half.bin", "");
  try {
    IndexedFile file((folder_ / "half").string());
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("half.idx"), std::string::npos);
  }
  folder_.write("other.idx", good_.idx());
  EXPECT_THROW(IndexedFile((folder_ / "other").string()), DataError);
}

TEST_F(IndexedFileTest, an_empty_file_has_no_tokens) {
  const IndexedFile file(token_file({}).write(folder_, "empty"));
  EXPECT_EQ(file.sequences(), 0);
  EXPECT_EQ(file.tokens(), 0);
}

TEST_F(IndexedFileTest, finds_the_first_id_outside_in_any_block) {
  std::vector<std::int64_t> ids(20000, 5);
  ids[13000] = ids[13001] = 8;
  const IndexedFile file(token_file<std::uint16_t>({ids}, 8).write(folder_, "long"));
  EXPECT_EQ(file.find_outside(0, 20000, 8), 13000);
  EXPECT_EQ(file.find_outside(0, 20000, 9), std::nullopt);
  EXPECT_EQ(file.find_outside(13001, 1, 8), 13001);
  EXPECT_EQ(file.find_outside(0, 13000, 8), std::nullopt);
}

TEST_F(IndexedFileTest, reads_what_tokenize_writes_and_says) {
  const std::string prefix = (folder_ / "written").string();
  {
    IndexedWriter writer(prefix, 300);
    writer.append(std::vector<std::int32_t>{7, 8, 9});
    writer.end_document();
    writer.append(std::vector<std::int32_t>{299});
    writer.end_document();
    writer.finish(Json::Object{{"tokenizer_hash", "abc"}});
  }
  const IndexedFile file(prefix);
  EXPECT_EQ(file.documents(), 2);
  EXPECT_EQ(file.bytes_per_token(), 2);
  ASSERT_TRUE(file.facts());
  EXPECT_EQ(file.facts()->largest_id, 299);
  EXPECT_EQ(file.facts()->tokens, 4);
  EXPECT_EQ(file.facts()->tokenizer_hash, "abc");
  std::vector<std::int32_t> ids(4);
  file.read(0, ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{7, 8, 9, 299}));
}

TEST_F(IndexedFileTest, facts_of_another_file_are_left_out) {
  const std::string prefix = good_.write(folder_, "stale");
  folder_.write("stale.json", R"({"documents": 3, "tokens": 8, "largest_id": 6})");
  EXPECT_FALSE(IndexedFile(prefix).facts());
  folder_.write("stale.json", R"([1, 2])");
  EXPECT_FALSE(IndexedFile(prefix).facts());
  folder_.write("stale.json", R"({"documents": 3, "tokens": 7, "largest_id": 6})");
  EXPECT_TRUE(IndexedFile(prefix).facts());
  folder_.write("stale.json", "{");
  try {
    IndexedFile opened(prefix);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    EXPECT_NE(std::string(error.what()).find("stale.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace trireme
