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
