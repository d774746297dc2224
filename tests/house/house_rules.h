#pragma once
// The layer and style rules of src/README.md as functions over text, so that each can be shown to
// fail.

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::house {

struct SourceFile {
  std::string path;  ///< from the root, "src/base/error.h"
  std::string text;
};

struct Fault {
  std::string path;
  int line;  ///< from 1; 0: the file as a whole
  std::string problem;
};
using Faults = std::vector<Fault>;

/// Quoted includes reach only folders of a lower level (never a sibling) or the file's own; an op's
/// folder reaches kernels/common, its own folder and the ops that `kOpsOfOps` names.
Faults layer_faults(const SourceFile& file);

/// Headers of heavy libraries are named in .cc files (or a private *_handles.h) of their one
/// folder, and no file elsewhere reaches them through any chain of includes.
Faults heavy_header_faults(std::span<const SourceFile> tree);

/// Who names a std:: algorithm or an integer of fixed width includes <algorithm> or <cstdint>,
/// itself or by the program's headers that it includes: <string> of one compiler brings them along,
/// of the next it does not.
Faults standard_header_faults(std::span<const SourceFile> tree);

/// src/model is written as if for one device: it includes nothing of comm/, and of parallel/ only
/// the two axes, parameters and cuts. That an axis has a communicator is below it.
Faults model_include_faults(const SourceFile& file);

/// Headers: #pragma once, no `using namespace`. All: no bare to-do mark, at most 600 lines and 100
/// columns, 120 where a raw string is, which clang-format cannot break (generated files, "// Made
/// by", apart).
Faults style_faults(const SourceFile& file);

/// Every op that kernels/CMakeLists.txt lists has <op>.h, a CPU source <op>*_cpu.cc or
/// <op>_onednn.cc, and a test tests/kernels/<op>*_test.cc.
Faults op_faults(std::string_view kernels_cmake, const std::set<std::string>& paths);

/// A shell test that sources lib.sh or check.sh has `finish` as its last line and nowhere else:
/// without it no check counts, and behind it none does.
Faults shell_test_faults(const SourceFile& file);

/// No file names a folder of the machine that it was written on.
Faults machine_path_faults(const SourceFile& file);

bool is_source(std::string_view path);  ///< C++ or CUDA

std::vector<std::string_view> lines_of(std::string_view text);  ///< without their ends

}  // namespace trireme::house
