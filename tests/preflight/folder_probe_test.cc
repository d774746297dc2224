#include "preflight/folder_probe.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "support/temporary_directory.h"

namespace trireme {
namespace {

TEST(WritingSpeed, is_known_and_leaves_nothing) {
  const TemporaryDirectory folder;
  FolderFacts facts;
  time_writing(folder.path(), facts, {0.2, 64 << 20});
  EXPECT_EQ(facts.refused, "");
  EXPECT_GT(facts.bytes_per_second, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(WritingSpeed, writes_no_more_than_it_may) {
  const TemporaryDirectory folder;
  FolderFacts facts;
  time_writing(folder.path(), facts, {1, 1 << 20});  // less than a block
  EXPECT_EQ(facts.refused, "");
  EXPECT_EQ(facts.bytes_per_second, 0);
}

TEST(WritingSpeed, leaves_three_quarters_of_what_is_free) {
  const TemporaryDirectory folder;
  FolderFacts facts;
  facts.free_bytes = 12 << 20;
  time_writing(folder.path(), facts);
  EXPECT_EQ(facts.refused, "");
  EXPECT_EQ(facts.bytes_per_second, 0) << "a block is more than a quarter";
}

TEST(WritingSpeed, is_the_best_of_several) {
  const TemporaryDirectory folder;
  FolderFacts facts;
  facts.bytes_per_second = 1e15;
  time_writing(folder.path(), facts, {0.1, 4 << 20});
  EXPECT_EQ(facts.bytes_per_second, 1e15);
}

TEST(WritingSpeed, says_why_nothing_can_be_written) {
  const TemporaryDirectory folder;
  FolderFacts facts;
  time_writing(folder / "absent", facts);
  EXPECT_EQ(facts.refused, "No such file or directory");
}

TEST(WritingSpeed, a_full_disk_is_told_and_nothing_stays) {
  const TemporaryDirectory folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{2 << 20, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  FolderFacts facts;
  time_writing(folder.path(), facts);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(facts.refused, "File too large");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(FolderProbe, of_one_rank_knows_what_is_free) {
  const TemporaryDirectory folder;
  const Launch alone;
  const FolderFacts facts = probe_folder(alone, folder.path());
  EXPECT_EQ(facts.fault, "");
  EXPECT_TRUE(facts.appears);
  EXPECT_EQ(facts.refused, "");
  EXPECT_GT(facts.free_bytes, 0);
  EXPECT_GT(facts.bytes_per_second, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(FolderProbe, of_a_folder_that_is_not_there_tells_why) {
  const TemporaryDirectory folder;
  const Launch alone;
  EXPECT_NE(probe_folder(alone, folder / "absent").fault.find("No such file"), std::string::npos);
}

}  // namespace
}  // namespace trireme
