// The rules on the tree itself.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "house/house_rules.h"

namespace trireme::house {
namespace {

/// Every text file that belongs to the project.
const std::vector<SourceFile>& tree() {
  static const std::vector<SourceFile> files = [] {
    const std::filesystem::path root = TRIREME_SOURCE_ROOT;
    const std::set<std::string> others = {".git", "build", "runs", ".cache", "__pycache__"};
    std::vector<SourceFile> found;
    for (auto entry = std::filesystem::recursive_directory_iterator(root); entry != end(entry);
         ++entry) {
      if (others.count(entry->path().filename().string()) > 0) {
        entry.disable_recursion_pending();
      } else if (entry->is_regular_file() && !entry->is_symlink()) {
        std::string text = read_file(entry->path());
        if (std::string_view(text).substr(0, 4096).find('\0') != std::string_view::npos) continue;
        found.push_back({entry->path().lexically_relative(root).generic_string(), std::move(text)});
      }
    }
    std::sort(found.begin(), found.end(),
              [](const auto& a, const auto& b) { return a.path < b.path; });
    return found;
  }();
  return files;
}

bool is_program(const SourceFile& file) {
  return is_source(file.path) &&
         (file.path.starts_with("src/") || file.path.starts_with("kernels/"));
}

void expect_none(const Faults& faults) {
  for (const Fault& fault : faults) {
    ADD_FAILURE_AT((std::string(TRIREME_SOURCE_ROOT) + "/" + fault.path).c_str(), fault.line)
        << fault.problem;
  }
}

TEST(Tree, is_found) { EXPECT_GT(std::count_if(tree().begin(), tree().end(), is_program), 50); }

TEST(Tree, a_folder_includes_only_lower_levels) {
  for (const SourceFile& file : tree()) {
    if (is_program(file)) expect_none(layer_faults(file));
  }
}

TEST(Tree, heavy_headers_stay_in_one_folder) {
  std::vector<SourceFile> program;
  std::copy_if(tree().begin(), tree().end(), std::back_inserter(program), is_program);
  expect_none(heavy_header_faults(program));
}

TEST(Tree, standard_headers_are_included) { expect_none(standard_header_faults(tree())); }

TEST(Tree, the_model_is_written_as_if_for_one_device) {
  for (const SourceFile& file : tree()) expect_none(model_word_faults(file));
}

TEST(Tree, sources_keep_the_house_style) {
  for (const SourceFile& file : tree()) {
    if (is_source(file.path)) expect_none(style_faults(file));
  }
}

TEST(Tree, every_op_is_complete) {
  std::set<std::string> paths;
  std::string cmake;
  for (const SourceFile& file : tree()) {
    paths.insert(file.path);
    if (file.path == "kernels/CMakeLists.txt") cmake = file.text;
  }
  expect_none(op_faults(cmake, paths));
}

TEST(Tree, shell_tests_end_with_what_counts_their_checks) {
  for (const SourceFile& file : tree()) expect_none(shell_test_faults(file));
}

TEST(Tree, no_file_names_a_machine) {
  for (const SourceFile& file : tree()) expect_none(machine_path_faults(file));
}

}  // namespace
}  // namespace trireme::house
