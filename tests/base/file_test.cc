#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

std::size_t entries_in(const std::filesystem::path& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

std::string message_of(const auto& call) {
  try {
    call();
  } catch (const DataError& fault) {
    return fault.what();
  }
  return "no DataError";
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(File, reads_back_what_was_written) {
  const TemporaryDirectory folder;
  const std::string content("a\0b\xff", 4);
  write_file_atomically(folder / "x", content);
  EXPECT_EQ(read_file(folder / "x"), content);
  EXPECT_EQ(entries_in(folder.path()), 1U) << "no temporary file stays";
}

TEST(File, an_atomic_write_replaces_the_content) {
  const TemporaryDirectory folder;
  write_file_atomically(folder / "x", "a longer old content");
  write_file_atomically(folder / "x", "new");
  EXPECT_EQ(read_file(folder / "x"), "new");
}

TEST(File, a_failed_atomic_write_keeps_the_old_file) {
  const TemporaryDirectory folder;
  write_file_atomically(folder / "x", "old");
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler_before = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{16, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(write_file_atomically(folder / "x", std::string(1000, 'n')), DataError);
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler_before);

  EXPECT_EQ(read_file(folder / "x"), "old");
  EXPECT_EQ(entries_in(folder.path()), 1U) << "no temporary file stays";
}

TEST(File, a_folder_in_the_place_of_the_file_is_refused_and_stays) {
  const TemporaryDirectory folder;
  std::filesystem::create_directory(folder / "x");
  EXPECT_THROW(write_file_atomically(folder / "x", "new"), DataError);
  EXPECT_TRUE(std::filesystem::is_directory(folder / "x"));
  EXPECT_EQ(entries_in(folder.path()), 1U);
}

TEST(File, errors_name_the_path_and_the_reason) {
  const TemporaryDirectory folder;
  folder.write("file", "abc");
  const std::string missing = message_of([&] { read_file(folder / "missing"); });
  EXPECT_NE(missing.find((folder / "missing").string()), std::string::npos);
  EXPECT_NE(missing.find("No such file or directory"), std::string::npos);
  EXPECT_NE(message_of([&] { read_file(folder.path()); }).find("not a regular file"),
            std::string::npos);
  EXPECT_NE(message_of([&] { MappedFile(folder.path()); }).find("not a regular file"),
            std::string::npos);
  EXPECT_NE(message_of([&] { read_file(folder / "file", 2); }).find("3 bytes"), std::string::npos);
  EXPECT_EQ(read_file(folder / "file", 3), "abc");
  EXPECT_NE(
      message_of([&] { write_file_atomically(folder / "file/x", ""); }).find("Not a directory"),
      std::string::npos);
  EXPECT_NE(message_of([&] { sync_path(folder / "missing"); }).find("No such file"),
            std::string::npos);
}

TEST(File, a_full_device_is_told) {
  const FileDescriptor full = open_file("/dev/full", O_WRONLY);
  EXPECT_NE(
      message_of([&] { write_all(full.get(), "x", "/dev/full"); }).find("No space left on device"),
      std::string::npos);
}

TEST(MappedFile, shows_the_bytes_of_the_file) {
  const TemporaryDirectory folder;
  const MappedFile mapped(folder.write("x", "hello"));
  EXPECT_EQ(text_of(mapped.bytes()), "hello");
}

TEST(MappedFile, an_empty_file_is_an_empty_span) {
  const TemporaryDirectory folder;
  EXPECT_TRUE(MappedFile(folder.write("x", "")).bytes().empty());
  EXPECT_TRUE(MappedFile().bytes().empty());
}

TEST(MappedFile, moving_takes_the_mapping_along) {
  const TemporaryDirectory folder;
  MappedFile first(folder.write("x", "hello"));
  MappedFile second(std::move(first));
  EXPECT_EQ(text_of(second.bytes()), "hello");
  EXPECT_TRUE(
      first.bytes()
          .empty());  // NOLINT(bugprone-use-after-move): what a moved-from file shows is promised
  MappedFile third(folder.write("y", "bye"));
  third = std::move(second);
  EXPECT_EQ(text_of(third.bytes()), "hello");
}

TEST(File, a_pipe_and_a_folder_are_refused_at_once) {
  const TemporaryDirectory folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const auto& path : {folder / "pipe", folder.path()}) {
    const std::string told = path.string() + ": is not a regular file";
    EXPECT_EQ(message_of([&] { read_file(path); }), told);
    EXPECT_EQ(message_of([&] { MappedFile{path}; }), told);
  }
}

TEST(MappedFileDeathTest, a_file_cut_while_it_is_mapped_is_named_and_ends_with_74) {
  const TemporaryDirectory folder;
  const MappedFile other(folder.write("other", std::string(100'000, 'y')));
  const MappedFile gone(folder.write("gone", std::string(100'000, 'z')));
  const std::filesystem::path path = folder.write("x", std::string(100'000, 'x'));
  const MappedFile mapped(path);
  EXPECT_EXIT(
      {
        std::filesystem::resize_file(path, 1);
        std::exit(std::to_integer<int>(mapped.bytes()[90'000]));
      },
      testing::ExitedWithCode(74), "/x: cannot be read any more.*\ntrain: exit 74");
}

TEST(MappedFileDeathTest, a_fault_of_no_mapped_file_ends_as_ever) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.write("x", std::string(100'000, 'x'));
  EXPECT_EXIT(
      {
        { const MappedFile forgotten(path); }
        const FileDescriptor file = open_file(path, O_RDONLY);
        const void* mapped = ::mmap(nullptr, 100'000, PROT_READ, MAP_SHARED, file.get(), 0);
        std::filesystem::resize_file(path, 1);
        std::exit(static_cast<const volatile char*>(mapped)[90'000]);
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST(MappedFile, a_mapping_outlives_the_name) {
  const TemporaryDirectory folder;
  const MappedFile mapped(folder.write("x", "hello"));
  std::filesystem::remove(folder / "x");
  EXPECT_EQ(text_of(mapped.bytes()), "hello");
}

}  // namespace
}  // namespace trireme
