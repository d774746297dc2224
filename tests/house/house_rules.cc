#include "house/house_rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <optional>

#include "house/cpp_text.h"

namespace trireme::house {

namespace {

constexpr std::string_view kToDo =
    "TO"
    "DO";  // in pieces: this file keeps the rule too
constexpr int kColumnsMax = 100, kRawColumnsMax = 120, kLinesMax = 600;

/// What a layer may know of other ranks: what a layout of a tensor means, and its parameters.
constexpr std::string_view kParallelForModel[] = {
    "parallel/context_axis.h", "parallel/cut.h",          "parallel/expert_axis.h",
    "parallel/expert_place.h", "parallel/tensor_axis.h",  "store/param.h",
    "store/param_store.h",     "store/quantized_layout.h"};

const std::map<std::string_view, int> kLevels = {
    {"base", 0},     {"config", 1},  {"tokenizer", 1}, {"device", 1},    {"tensor", 2},
    {"comm", 3},     {"kernels", 3}, {"parallel", 4},  {"store", 5},     {"pipeline", 5},
    {"model", 6},    {"optim", 6},   {"dataset", 6},   {"plan", 7},      {"generate", 7},
    {"guard", 7},    {"train", 8},   {"preflight", 9}, {"commands", 10}, {"checkpoint", 6},
    {"telemetry", 6}};

/// Ops built on another op, as their headers say; the language of kernels is simt_host's where nvcc
/// does not compile.
const std::map<std::string_view, std::set<std::string_view>> kOpsOfOps = {
    {"activation_codes", {"quantize"}},
    {"attention", {"gemm", "quantize"}},
    {"common", {"simt_host"}},
    {"cross_entropy", {"gemm"}},
    {"expert_rows", {"glu", "quantize"}},
    {"gemm", {"elementwise", "gelu", "glu", "quantize"}},
    {"grouped_gemm", {"gemm", "quantize"}},
    {"norm", {"quantize"}},
    {"quantize", {"elementwise"}},
    {"rope", {"quantize"}},
    {"simt_host", {"attention"}}};
/// It lists every op's table.
constexpr std::string_view kListOfOps = "kernels/common/gpu_kernels_cuda.cc";

/// Headers that choose an instruction set take over its namespace as a whole.
constexpr std::string_view kSimdHeaders = "/simd";

struct HeavyHeader {
  std::string_view prefix, folder;
};
constexpr HeavyHeader kHeavyHeaders[] = {
    {"nlohmann/", "src/base/"}, {"spdlog/", "src/base/"},    {"xxhash", "src/base/"},
    {"CLI/", "src/commands/"},  {"dnnl", "kernels/"},        {"oneapi/", "kernels/"},
    {"cublas", "kernels/"},     {"cudnn", "kernels/"},       {"mpi", "src/comm/"},
    {"nccl", "src/comm/"},      {"hdf5", "src/checkpoint/"}, {"H5", "src/checkpoint/"},
    {"hwloc", "src/device/"},   {"pcre2", "src/tokenizer/"}, {"utf8proc", "src/tokenizer/"},
    {"zlib", "src/tokenizer/"}, {"zstd", "src/tokenizer/"}};

/// What stands for a library there defines its functions, by its header.
constexpr std::string_view kStandIns = "kernels/simt_host/";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  return first == std::string_view::npos ? "" : text.substr(first);
}

struct Include {
  std::string_view target;
  bool quoted;
};

std::optional<Include> include_of(std::string_view line) {
  line = trimmed(line);
  if (!line.starts_with('#')) return std::nullopt;
  line = trimmed(line.substr(1));
  if (!line.starts_with("include")) return std::nullopt;
  line = trimmed(line.substr(7));
  if (line.empty() || (line[0] != '"' && line[0] != '<')) return std::nullopt;  // by way of a macro
  const bool quoted = line[0] == '"';
  line.remove_prefix(1);
  return Include{line.substr(0, line.find(quoted ? '"' : '>')), quoted};
}

void for_each_include(const SourceFile& file,
                      const std::function<void(int line, const Include&)>& visit) {
  const auto lines = lines_of(file.text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (const auto include = include_of(lines[i])) visit(static_cast<int>(i) + 1, *include);
  }
}

std::string_view first_part(std::string_view path) { return path.substr(0, path.find('/')); }

/// "base" of "src/base/error.h", "kernels" of everything there, "" of src/main.cc.
std::string_view folder_of(std::string_view path) {
  if (path.starts_with("src/")) path.remove_prefix(4);
  return path.find('/') == std::string_view::npos ? "" : first_part(path);
}

std::string_view op_of(std::string_view path) {
  return first_part(path.substr(std::string_view("kernels/").size()));
}

bool is_word_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

int columns_of(std::string_view line) {
  return static_cast<int>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::set<int> raw_string_lines(std::string_view source) {
  std::set<int> lines;
  for (const LineRange& range : scan_cpp(source).raw_strings) {
    for (int line = range.first; line <= range.last; ++line) lines.insert(line);
  }
  return lines;
}

bool is_header(std::string_view path) { return path.ends_with(".h") || path.ends_with(".cuh"); }

const HeavyHeader* heavy_header(const Include& include) {
  if (include.quoted) return nullptr;
  const auto found = std::find_if(
      std::begin(kHeavyHeaders), std::end(kHeavyHeaders),
      [&](const HeavyHeader& heavy) { return include.target.starts_with(heavy.prefix); });
  return found == std::end(kHeavyHeaders) ? nullptr : found;
}

/// Headers that some standard libraries bring along with others, and the names that they are needed
/// for.
struct StandardHeader {
  std::string_view name;
  std::set<std::string_view> words;
};
const StandardHeader kStandardHeaders[] = {
    {"algorithm",
     {"adjacent_find",  "all_of",      "any_of",  "binary_search", "clamp",        "copy",
      "copy_if",        "copy_n",      "count",   "count_if",      "equal",        "fill",
      "fill_n",         "find",        "find_if", "find_if_not",   "for_each",     "generate",
      "is_sorted",      "lower_bound", "max",     "max_element",   "min",          "min_element",
      "minmax_element", "mismatch",    "none_of", "nth_element",   "partial_sort", "remove_if",
      "replace",        "reverse",     "rotate",  "search",        "shuffle",      "sort",
      "stable_sort",    "transform",   "unique",  "upper_bound"}},
    {"cstdint",
     {"int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t"}},
    {"limits", {"numeric_limits"}},
};

/// The first of `words` behind a std:: outside of comments, and its line; line 0: there is none.
std::pair<int, std::string_view> first_word_of(const SourceFile& file,
                                               const std::set<std::string_view>& words) {
  constexpr std::string_view kNamespace = "std::";
  const auto lines = lines_of(file.text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string_view code = lines[i].substr(0, lines[i].find("//"));
    for (auto at = code.find(kNamespace); at != std::string_view::npos;
         at = code.find(kNamespace, at)) {
      at += kNamespace.size();
      const auto end = std::find_if_not(code.begin() + static_cast<std::ptrdiff_t>(at), code.end(),
                                        is_word_character);
      const std::string_view word(code.data() + at,
                                  static_cast<std::size_t>(end - code.begin()) - at);
      if (words.count(word) > 0) return {static_cast<int>(i) + 1, word};
    }
  }
  return {0, ""};
}

std::string op_layer_problem(const SourceFile& file, std::string_view target) {
  const std::string_view from = op_of(file.path), to = op_of(target);
  if (from == to || to == "common" || file.path == kListOfOps) return "";
  const auto known = kOpsOfOps.find(from);
  if (known != kOpsOfOps.end() && known->second.count(to) > 0) return "";
  return fmt::format(
      "the op {} includes the op {} (ops do not know each other). Name the pair in kOpsOfOps where "
      "one "
      "is built on the other",
      from, to);
}

std::string layer_problem(const SourceFile& file, std::string_view target) {
  const std::string_view from = folder_of(file.path), to = folder_of(target);
  if (kLevels.count(to) == 0) {
    return fmt::format(
        "\"{}\" does not begin with a folder of src or with kernels/ (includes are written from "
        "the root)",
        target);
  }
  if (from.empty()) return "";  // main.cc may include anything
  if (from == "kernels" && to == "kernels") return op_layer_problem(file, target);
  if (from == to || kLevels.at(to) < kLevels.at(from)) return "";
  return fmt::format("{} (level {}) includes {} (level {}): only lower levels may be included",
                     from, kLevels.at(from), to, kLevels.at(to));
}

}  // namespace

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

bool is_source(std::string_view path) {
  return is_header(path) || path.ends_with(".cc") || path.ends_with(".cu");
}

Faults layer_faults(const SourceFile& file) {
  const std::string_view folder = folder_of(file.path);
  if (!folder.empty() && kLevels.count(folder) == 0) {
    return {{file.path, 0,
             fmt::format("the folder {} has no level in tests/house/house_rules.cc", folder)}};
  }
  Faults faults;
  for_each_include(file, [&](int line, const Include& include) {
    if (!include.quoted) return;
    const std::string problem = layer_problem(file, include.target);
    if (!problem.empty()) faults.push_back({file.path, line, problem});
  });
  return faults;
}

Faults heavy_header_faults(std::span<const SourceFile> tree) {
  Faults faults;
  std::map<std::string, std::set<const HeavyHeader*>> reached;  // by path of a file
  const auto check = [&](const SourceFile& file, int line, const HeavyHeader& heavy,
                         std::string_view through) {
    if (!reached[file.path].insert(&heavy).second) return false;
    if (!file.path.starts_with(heavy.folder) && !file.path.starts_with(kStandIns)) {
      faults.push_back({file.path, line,
                        fmt::format("reaches <{}...> through {} (only files of {} may)",
                                    heavy.prefix, through, heavy.folder)});
    }
    return true;
  };
  for (const SourceFile& file : tree) {
    for_each_include(file, [&](int line, const Include& include) {
      const HeavyHeader* heavy = heavy_header(include);
      if (heavy == nullptr) return;
      check(file, line, *heavy, include.target);
      if (is_header(file.path) && !file.path.ends_with("_handles.h")) {
        faults.push_back(
            {file.path, line,
             fmt::format("a header includes <{}>; a .cc file should", include.target)});
      }
    });
  }
  for (bool grew = true; grew;) {
    grew = false;
    for (const SourceFile& file : tree) {
      for_each_include(file, [&](int line, const Include& include) {
        if (!include.quoted) return;
        for (const std::string& path :
             {"src/" + std::string(include.target), std::string(include.target)}) {
          const auto found = reached.find(path);
          if (found == reached.end()) continue;
          const auto through = found->second;
          for (const HeavyHeader* heavy : through) grew |= check(file, line, *heavy, path);
        }
      });
    }
  }
  return faults;
}

Faults standard_header_faults(std::span<const SourceFile> tree) {
  Faults faults;
  for (const StandardHeader& header : kStandardHeaders) {
    std::set<std::string> complete;  // paths that the header is reached from
    for (bool grew = true; grew;) {
      grew = false;
      for (const SourceFile& file : tree) {
        if (complete.count(file.path) > 0) continue;
        const std::string folder = file.path.substr(0, file.path.rfind('/') + 1);
        for_each_include(file, [&](int, const Include& include) {
          const std::string target(include.target);
          bool reaches = !include.quoted && target == header.name;
          if (include.quoted) {
            for (const std::string& from :
                 {std::string("src/"), std::string("tests/"), std::string(), folder})
              reaches |= complete.count(from + target) > 0;
          }
          if (reaches) grew |= complete.insert(file.path).second;
        });
      }
    }
    for (const SourceFile& file : tree) {
      if (!is_source(file.path) || complete.count(file.path) > 0) continue;
      const auto [line, word] = first_word_of(file, header.words);
      if (line > 0)
        faults.push_back({file.path, line, fmt::format("std::{} without <{}>", word, header.name)});
    }
  }
  return faults;
}

Faults model_include_faults(const SourceFile& file) {
  Faults faults;
  if (!file.path.starts_with("src/model/")) return faults;
  for_each_include(file, [&](int line, const Include& include) {
    const std::string_view target = include.target;
    const bool open = std::find(std::begin(kParallelForModel), std::end(kParallelForModel),
                                target) != std::end(kParallelForModel);
    if (target.starts_with("comm/") ||
        ((target.starts_with("parallel/") || target.starts_with("store/")) && !open)) {
      faults.push_back({file.path, line,
                        fmt::format("the model includes \"{}\" (it is written as if for one "
                                    "device: kParallelForModel lists what it asks)",
                                    target)});
    }
  });
  return faults;
}

Faults style_faults(const SourceFile& file) {
  Faults faults;
  const auto lines = lines_of(file.text);
  const bool generated = file.text.starts_with("// Made by ");
  const std::set<int> raw_lines = raw_string_lines(file.text);
  const bool may_not_use_namespaces =
      is_header(file.path) && file.path.find(kSimdHeaders) == std::string::npos;
  if (is_header(file.path) && !file.text.starts_with("#pragma once\n")) {
    faults.push_back({file.path, 1, "a header begins with #pragma once"});
  }
  if (!generated && lines.size() > kLinesMax) {
    faults.push_back(
        {file.path, 0, fmt::format("{} lines, more than {}", lines.size(), kLinesMax)});
  }
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const int line = static_cast<int>(i) + 1;
    const int columns_max = raw_lines.count(line) > 0 ? kRawColumnsMax : kColumnsMax;
    if (!generated && columns_of(lines[i]) > columns_max) {
      faults.push_back(
          {file.path, line,
           fmt::format("{} columns, more than {}", columns_of(lines[i]), columns_max)});
    }
    if (may_not_use_namespaces && trimmed(lines[i]).starts_with("using namespace")) {
      faults.push_back({file.path, line, "using namespace in a header"});
    }
    const std::size_t mark = lines[i].find(kToDo);
    if (mark != std::string_view::npos && !lines[i].substr(mark + kToDo.size()).starts_with('(')) {
      faults.push_back({file.path, line, "a to-do without a name"});
    }
  }
  return faults;
}

Faults op_faults(std::string_view kernels_cmake, const std::set<std::string>& paths) {
  constexpr std::string_view kCMake = "kernels/CMakeLists.txt", kListBegin = "set(ops ";
  const std::size_t begin = kernels_cmake.find(kListBegin);
  if (begin == std::string_view::npos) return {{std::string(kCMake), 0, "no list set(ops ...)"}};
  std::string_view list = kernels_cmake.substr(begin + kListBegin.size());
  list = list.substr(0, list.find(')'));
  const auto any = [&](const std::string& prefix, std::string_view suffix) {
    return std::any_of(paths.begin(), paths.end(), [&](const std::string& path) {
      return path.starts_with(prefix) && path.ends_with(suffix);
    });
  };
  Faults faults;
  while (!(list = list.substr(std::min(list.find_first_not_of(" \n"), list.size()))).empty()) {
    const std::string op(list.substr(0, list.find_first_of(" \n")));
    list.remove_prefix(op.size());
    const std::string stem = "kernels/" + op + "/" + op;
    const auto missing = [&](std::string_view what) {
      faults.push_back({std::string(kCMake), 0, fmt::format("the op {} has no {}", op, what)});
    };
    if (paths.count(stem + ".h") == 0) missing("contract " + stem + ".h");
    if (!any(stem, "_cpu.cc") && !any(stem, "_onednn.cc") && !any(stem, "_threads.cc"))
      missing("CPU source " + stem + "*_cpu.cc");
    if (!any("tests/kernels/" + op, "_test.cc")) missing("test tests/kernels/" + op + "*_test.cc");
  }
  return faults;
}

Faults shell_test_faults(const SourceFile& file) {
  if (!file.path.starts_with("tests/") || !file.path.ends_with("_test.sh")) return {};
  bool sources = false;
  int last = 0;
  std::vector<int> finishes;
  const auto lines = lines_of(file.text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string_view line = lines[i];
    const int number = static_cast<int>(i) + 1;
    sources =
        sources || (line.starts_with(". ") && (line.find("lib.sh") != std::string_view::npos ||
                                               line.find("check.sh") != std::string_view::npos));
    if (line == "finish") finishes.push_back(number);
    if (!line.empty()) last = number;
  }
  if (!sources || finishes == std::vector<int>{last}) return {};
  return {{file.path, finishes.empty() ? last : finishes.front(),
           "`finish` is not the last line, and that alone"}};
}

Faults machine_path_faults(const SourceFile& file) {
  // In pieces, so that this file does not name them.
  static const std::string kForbidden[] = {std::string("../") + "shared",
                                           std::string("/wo") + "rk/", std::string("/ro") + "ot/"};
  Faults faults;
  const auto lines = lines_of(file.text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    for (const std::string& word : kForbidden) {
      if (lines[i].find(word) == std::string_view::npos) continue;
      faults.push_back(
          {file.path, static_cast<int>(i) + 1, "names \"" + word + "\", a folder of one machine"});
    }
  }
  return faults;
}

}  // namespace trireme::house
