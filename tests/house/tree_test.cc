// The rules on the tree itself.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "house/function_rules.h"
#include "house/house_rules.h"
#include "house/path_rules.h"
#include "house/type_rules.h"

namespace trireme::house {
namespace {

struct Tree {
  std::vector<SourceFile> texts;   // every text file that belongs to the project
  std::vector<std::string> paths;  // of every file
};

Tree read_tree() {
  const std::filesystem::path root = TRIREME_SOURCE_ROOT;
  const std::set<std::string> others = {".git", "build", "runs", ".cache", "__pycache__"};
  Tree tree;
  for (auto entry = std::filesystem::recursive_directory_iterator(root); entry != end(entry);
       ++entry) {
    if (others.count(entry->path().filename().string()) > 0) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file() && !entry->is_symlink()) {
      std::string path = entry->path().lexically_relative(root).generic_string();
      tree.paths.push_back(path);
      std::string text = read_file(entry->path());
      if (std::string_view(text).substr(0, 4096).find('\0') != std::string_view::npos) continue;
      tree.texts.push_back({std::move(path), std::move(text)});
    }
  }
  std::sort(tree.texts.begin(), tree.texts.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  return tree;
}

const Tree& whole_tree() {
  static const Tree tree = read_tree();
  return tree;
}

const std::vector<SourceFile>& tree() { return whole_tree().texts; }

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

std::vector<SourceFile> program() {
  std::vector<SourceFile> program;
  std::copy_if(tree().begin(), tree().end(), std::back_inserter(program), is_program);
  return program;
}

TEST(Tree, heavy_headers_stay_in_one_folder) { expect_none(heavy_header_faults(program())); }

TEST(Tree, a_type_has_a_name_of_its_own) { expect_none(type_faults(program())); }

TEST(Tree, standard_headers_are_included) { expect_none(standard_header_faults(tree())); }

TEST(Tree, the_model_is_written_as_if_for_one_device) {
  for (const SourceFile& file : tree()) expect_none(model_include_faults(file));
}

TEST(Tree, sources_keep_the_house_style) {
  for (const SourceFile& file : tree()) {
    if (is_source(file.path)) expect_none(style_faults(file));
  }
}

TEST(Tree, functions_are_short_and_take_few_parameters) {
  for (const SourceFile& file : tree()) {
    if (is_source(file.path)) expect_none(function_faults(file));
  }
}

TEST(Tree, links_and_named_paths_lead_somewhere) {
  const TreeNames names = names_of(whole_tree().paths, tree());
  for (const SourceFile& file : tree()) {
    expect_none(link_faults(file, names));
    expect_none(path_faults(file, names));
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
