#include "base/program_files.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

// What an installed program finds is tested by cluster/install_test.sh.
TEST(ProgramFiles, a_program_that_was_built_finds_the_files_of_its_tree) {
  const std::filesystem::path found = find_program_file("scripts/run.sh");
  ASSERT_FALSE(found.empty());
  EXPECT_TRUE(found.is_absolute());
  EXPECT_TRUE(std::filesystem::exists(found.parent_path() / "forwarded.sh"));
  EXPECT_FALSE(find_program_file("configs/tiny_llama.json").empty());
}

TEST(ProgramFiles, neither_a_file_that_does_not_exist_nor_a_folder_is_found) {
  EXPECT_TRUE(find_program_file("scripts/no_such_script.sh").empty());
  EXPECT_TRUE(find_program_file("scripts").empty());
}

TEST(ProgramFiles, in_the_source_tree_a_person_types_the_place_there) {
  EXPECT_EQ(program_file_to_type("scripts/run.sh"), "scripts/run.sh");
}

}  // namespace
}  // namespace trireme
