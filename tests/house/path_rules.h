#pragma once
// What pages and comments name must be there.

#include <map>
#include <set>
#include <span>
#include <string>

#include "house/house_rules.h"

namespace trireme::house {

struct TreeNames {
  std::set<std::string> paths;  ///< files and folders from the root, "src/base/error.h"
  std::set<std::string> files;  ///< their last parts, "error.h"
  /// By page: a heading's anchor as GitHub makes it.
  std::map<std::string, std::set<std::string>> anchors;
};

/// `paths` of files alone, "src/base/error.h"; their folders are added.
TreeNames names_of(std::span<const std::string> paths, std::span<const SourceFile> texts);

/// Relative links of a Markdown page, outside of code, lead to a file or folder of the tree and,
/// behind a #, to one of its headings.
Faults link_faults(const SourceFile& page, const TreeNames& names);

/// Sources, scripts and pages that a Markdown page or a comment (C++, CUDA, shell, Python, CMake)
/// names exist: from the root, from src, tests or kernels, or beside the file; one named without a
/// folder, anywhere. So do folders that begin with src/, kernels/, tests/, scripts/, docs/ or
/// cmake/. Not looked at: placeholders (<op>.h, DIR/x.sh, *.cc, file.cu) and what other projects'
/// names are listed for in the source.
Faults path_faults(const SourceFile& file, const TreeNames& names);

}  // namespace trireme::house
