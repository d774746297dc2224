#include "tokenizer/indexed_writer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/error.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

using Ids = std::vector<std::int32_t>;
void add(IndexedWriter& writer, const Ids& ids) {
  writer.append(ids);
  writer.end_document();
}

TEST(IndexedWriter, writes_the_format_byte_for_byte) {
  const TemporaryDirectory folder;
  {
    IndexedWriter writer(folder / "x", 65499);
    add(writer, {1, 258});
    add(writer, {});
    writer.append(Ids{3});
    writer.append(Ids{4, 65498});
    writer.end_document();
    writer.finish(Json::object());
    EXPECT_EQ(writer.totals().documents, 2);
    EXPECT_EQ(writer.totals().tokens, 5);
    EXPECT_EQ(writer.totals().empty_documents, 1);
    EXPECT_EQ(writer.totals().largest_id, 65498);
  }
  EXPECT_EQ(read_file(folder / "x.bin"), std::string("\1\0\2\1\3\0\4\0\xda\xff", 10));
  const std::string index = read_file(folder / "x.idx");
  const std::string expected =
      std::string("MMIDIDX\0\0", 9) + std::string("\1\0\0\0\0\0\0\0", 8) + "\x8" +
      std::string("\2\0\0\0\0\0\0\0", 8) + std::string("\3\0\0\0\0\0\0\0", 8) +
      std::string("\2\0\0\0\3\0\0\0", 8) + std::string("\0\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0", 16) +
      std::string("\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0", 24);
  EXPECT_EQ(index, expected);
  const Json about = parse_json(read_file(folder / "x.json"), "x.json");
  EXPECT_EQ(about.find("documents")->as_integer(), 2);
  EXPECT_EQ(about.find("tokens")->as_integer(), 5);
  EXPECT_EQ(about.find("largest_id")->as_integer(), 65498);
  EXPECT_EQ(about.find("dtype")->as_string(), "uint16");
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"x.bin", "x.idx", "x.json"}));
}

using Bytes = std::vector<std::uint8_t>;
void add(IndexedWriter& writer, const Ids& ids, const Bytes& counted) {
  writer.append(ids, counted);
  writer.end_document();
}

TEST(IndexedWriter, a_mask_has_a_byte_for_each_token) {
  const TemporaryDirectory folder;
  IndexedWriter writer(folder / "x", 300, TargetMask::kWritten);
  add(writer, {1, 2, 3}, {0, 1, 1});
  add(writer, {4});
  add(writer, {5, 6}, {0, 0});
  EXPECT_THROW(writer.append(Ids{1, 2}, Bytes{1}), InternalError);
  writer.finish(Json::object());
  EXPECT_EQ(read_file(folder / "x.mask"), std::string("\0\1\1\1\0\0", 6));
  EXPECT_EQ(writer.totals().counted, 3);
  EXPECT_EQ(writer.totals().without_targets, 1);
  EXPECT_EQ(parse_json(read_file(folder / "x.json"), "x").find("targets")->as_integer(), 3);
  EXPECT_EQ(names_in(folder.path()),
            (std::vector<std::string>{"x.bin", "x.idx", "x.json", "x.mask"}));
  // A mask of other tokens would be taken for that of the new ones.
  IndexedWriter again(folder / "x", 300);
  add(again, {1, 2, 3, 4, 5, 6});
  again.finish(Json::object());
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"x.bin", "x.idx", "x.json"}));
}

std::string narrow(const Ids& ids) {
  std::string bytes;
  for (const std::int32_t id : ids) bytes += {static_cast<char>(id), '\0'};
  return bytes;
}

TEST(IndexedWriter, packed_windows_hold_whole_documents_and_padding) {
  const TemporaryDirectory folder;
  const auto packed = [&](Overflow overflow) {
    IndexedWriter writer(folder / "x", 300, TargetMask::kWritten);
    add(writer, {1, 2}, {1, 1});
    add(writer, {3, 4, 5, 6, 7, 8}, {0, 1, 1, 1, 1, 1});
    add(writer, {});
    add(writer, {9, 10, 11}, {0, 0, 1});
    writer.pack({4, overflow, 99});
    writer.finish(Json::object());
    return writer.totals();
  };
  const IndexedTotals cut = packed(Overflow::kTruncate);
  EXPECT_EQ(read_file(folder / "x.bin"), narrow({3, 4, 5, 6, 9, 10, 11, 99, 1, 2, 99, 99, 99}));
  EXPECT_EQ(read_file(folder / "x.mask"), std::string("\0\1\1\1\0\0\1\0\0\1\0\0\0", 13));
  // Five sequences in three documents: 4 | 3, 1 | 2, 3.
  const std::string index = read_file(folder / "x.idx");
  EXPECT_EQ(index.substr(18, 16), std::string("\5\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0", 16));
  EXPECT_EQ(index.substr(34, 20), std::string("\4\0\0\0\3\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0", 20));
  EXPECT_EQ(index.substr(index.size() - 32),
            std::string("\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0", 32));
  EXPECT_EQ(cut.documents, 3);
  EXPECT_EQ(cut.packed_documents, 3);
  EXPECT_EQ(cut.tokens, 13);
  EXPECT_EQ(cut.too_long, 1);
  EXPECT_EQ(cut.dropped, 2);
  EXPECT_EQ(cut.counted, 5);
  EXPECT_EQ(cut.largest_id, 99);

  const IndexedTotals split = packed(Overflow::kSplit);
  // The rest is a document of its own, whose first token nobody predicts.
  EXPECT_EQ(read_file(folder / "x.bin"), narrow({3, 4, 5, 6, 9, 10, 11, 99, 1, 2, 7, 8, 99}));
  EXPECT_EQ(read_file(folder / "x.mask"), std::string("\0\1\1\1\0\0\1\0\0\1\0\1\0", 13));
  EXPECT_EQ(split.dropped, 0);
  EXPECT_EQ(split.packed_documents, 4);

  try {
    packed(Overflow::kRefuse);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("document 1 has 6 tokens, more than --pack 4"),
              std::string::npos)
        << error.what();
  }
}

TEST(IndexedWriter, large_vocabularies_take_four_bytes) {
  const TemporaryDirectory folder;
  IndexedWriter writer(folder / "x", 65500);
  add(writer, {65499});
  writer.finish(Json::object());
  EXPECT_EQ(read_file(folder / "x.bin"), std::string("\xdb\xff\0\0", 4));
  EXPECT_EQ(read_file(folder / "x.idx")[17], 4);
}

TEST(IndexedWriter, unfinished_leaves_nothing_and_the_older_files) {
  const TemporaryDirectory folder;
  folder.write("x.bin", "old");
  {
    IndexedWriter writer(folder / "x", 300);
    add(writer, {1, 2, 3});
  }
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"x.bin"});
  EXPECT_EQ(read_file(folder / "x.bin"), "old");
}

TEST(IndexedWriter, a_file_system_that_refuses_is_a_data_error_and_nothing_is_left) {
  const TemporaryDirectory folder;
  EXPECT_THROW(IndexedWriter(folder / "absent" / "x", 300), DataError);
  EXPECT_THROW(IndexedWriter(folder.path() / "", 300), DataError);
  std::filesystem::create_directory(folder / "x.idx");
  {
    IndexedWriter writer(folder / "x", 300);
    add(writer, {1, 2, 3});
    EXPECT_THROW(writer.finish(Json::object()), DataError);
  }
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"x.idx"});
}

TEST(IndexedWriter, a_full_disk_is_a_data_error_and_nothing_is_left) {
  // The limit on the size of a file refuses a write as a full disk does, also for root.
  const TemporaryDirectory folder;
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit small = before;
  small.rlim_cur = 1 << 20;
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto fill = [&] {
    IndexedWriter writer(folder / "x", 300);
    const Ids ids(1 << 20, 1);
    for (int i = 0; i < 8; ++i) add(writer, ids);
    writer.finish(Json::object());
  };
  EXPECT_THROW(fill(), DataError);
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{});
}

}  // namespace
}  // namespace trireme
