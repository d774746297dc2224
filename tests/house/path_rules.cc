#include "house/path_rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>

#include "house/cpp_text.h"

namespace trireme::house {

namespace {

bool is_page(std::string_view path) { return path.ends_with(".md"); }

bool is_plain(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Lines of a page outside of fenced code, with what stands between backquotes as blanks if
/// `blank_code`.
void for_each_text_line(std::string_view page, bool blank_code,
                        const std::function<void(int line, std::string_view)>& visit) {
  bool fenced = false;
  int number = 0;
  for (const std::string_view line : lines_of(page)) {
    ++number;
    if (line.starts_with("```")) fenced = !fenced;
    if (fenced || line.starts_with("```")) continue;
    std::string text(line);
    bool code = false;
    for (char& c : text) {
      if (c == '`') code = !code;
      if (blank_code && code) c = ' ';
    }
    visit(number, text);
  }
}

/// GitHub's: lower case, blanks as hyphens, no other punctuation than - and _.
std::string anchor_of(std::string_view heading) {
  std::string anchor;
  bool in_target = false;  // of [text](target)
  for (std::size_t i = 0; i < heading.size(); ++i) {
    const char c = heading[i];
    if (i > 0 && c == '(' && heading[i - 1] == ']') in_target = true;
    if (in_target) {
      in_target = c != ')';
    } else if (is_plain(c) || c == '-' || (static_cast<unsigned char>(c) & 0x80) != 0) {
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (c == ' ') {
      anchor += '-';
    }
  }
  return anchor;
}

std::set<std::string> anchors_of(std::string_view page) {
  std::set<std::string> anchors;
  std::map<std::string, int> times;
  for_each_text_line(page, false, [&](int, std::string_view line) {
    const std::size_t level = line.find_first_not_of('#');
    if (level == 0 || level > 6 || level == std::string_view::npos || line[level] != ' ') return;
    const std::string anchor = anchor_of(line.substr(level + 1));
    const int before = times[anchor]++;
    anchors.insert(before == 0 ? anchor : fmt::format("{}-{}", anchor, before));
  });
  return anchors;
}

std::string joined(std::string_view folder, std::string_view path) {
  return (std::filesystem::path(folder) / path).lexically_normal().generic_string();
}

std::string_view folder_of(std::string_view path) {
  const std::size_t end = path.rfind('/');
  return end == std::string_view::npos ? std::string_view() : path.substr(0, end);
}

std::string link_problem(const SourceFile& page, std::string_view target, const TreeNames& names) {
  const std::size_t mark = std::min(target.find('#'), target.size());
  std::string path = page.path;
  if (mark > 0) path = joined(folder_of(page.path), target.substr(0, mark));
  if (path.ends_with('/')) path.pop_back();
  if (names.paths.count(path) == 0) return fmt::format("links to {}, which is not there", target);
  if (mark == target.size()) return "";
  const auto anchors = names.anchors.find(path);
  const bool found = anchors != names.anchors.end() &&
                     anchors->second.count(std::string(target.substr(mark + 1))) > 0;
  return found ? "" : fmt::format("links to {}: {} has no such heading", target, path);
}

// ---- paths in comments ----

/// Of other projects and of the system, and names that stand for any file.
const std::set<std::string_view> kForeign = {
    "caller.cu", "cuda_runtime.h", "file.cu", "hdf5.h", "mpi.h", "pretrain.sh", "pretrain_gpt.py"};
constexpr std::string_view kForeignFolders[] = {"megatron/"};

constexpr std::string_view kNamedFiles[] = {".cc", ".h",  ".cu", ".cuh",
                                            ".sh", ".py", ".md", ".cmake"};
constexpr std::string_view kNamedFolders[] = {"src/",     "kernels/", "tests/",
                                              "scripts/", "docs/",    "cmake/"};

bool has_comments_by_hash(std::string_view path) {
  for (const std::string_view suffix : {".sh", ".py", ".cmake", ".sbatch", "CMakeLists.txt",
                                        "Dockerfile", ".ci/run", ".clang-tidy"}) {
    if (path.ends_with(suffix)) return true;
  }
  return false;
}

void for_each_comment(const SourceFile& file,
                      const std::function<void(int line, std::string_view)>& visit) {
  if (is_source(file.path)) {
    for (const Comment& comment : scan_cpp(file.text).comments) {
      int line = comment.line;
      for (const std::string_view text : lines_of(comment.text)) visit(line++, text);
    }
    return;
  }
  if (!is_page(file.path) && !has_comments_by_hash(file.path)) return;
  int number = 0;
  for (const std::string_view line : lines_of(file.text)) {
    ++number;
    if (is_page(file.path)) {
      visit(number, line);
      continue;
    }
    for (std::size_t at = line.find('#'); at != std::string_view::npos;
         at = line.find('#', at + 1)) {
      if (at > 0 && line[at - 1] != ' ') continue;
      visit(number, line.substr(at + 1));
      break;
    }
  }
}

/// A part without a small letter stands for something: DIR, N.
bool has_placeholder(std::string_view word) {
  if (word.find_first_of("<>*{}$%~+") != std::string_view::npos) return true;
  while (!word.empty()) {
    const std::string_view part = word.substr(0, word.find('/'));
    const bool named = std::any_of(part.begin(), part.end(), [](char c) {
      return std::islower(static_cast<unsigned char>(c)) != 0 || c == '.';
    });
    if (!part.empty() && !named) return true;
    word.remove_prefix(std::min(part.size() + 1, word.size()));
  }
  return false;
}

bool exists(std::string_view word, const SourceFile& file, const TreeNames& names) {
  if (word.find('/') == std::string_view::npos && names.files.count(std::string(word)) > 0) {
    return true;
  }
  for (const std::string_view folder :
       {std::string_view(), std::string_view("src"), std::string_view("tests"),
        std::string_view("kernels"), folder_of(file.path)}) {
    if (names.paths.count(joined(folder, word)) > 0) return true;
  }
  return false;
}

std::string path_problem(std::string_view word, const SourceFile& file, const TreeNames& names) {
  const auto begins = [&](std::string_view prefix) { return word.starts_with(prefix); };
  const auto ends = [&](std::string_view suffix) {
    return word.ends_with(suffix) && word.size() > suffix.size();
  };
  const bool is_named = std::any_of(std::begin(kNamedFiles), std::end(kNamedFiles), ends) ||
                        std::any_of(std::begin(kNamedFolders), std::end(kNamedFolders), begins);
  const bool is_foreign =
      kForeign.count(word) > 0 ||
      std::any_of(std::begin(kForeignFolders), std::end(kForeignFolders), begins);
  if (!is_named || is_foreign || has_placeholder(word)) return "";
  while (word.ends_with('/')) word.remove_suffix(1);
  return exists(word, file, names) ? "" : fmt::format("names {}, which is not there", word);
}

}  // namespace

TreeNames names_of(std::span<const std::string> paths, std::span<const SourceFile> texts) {
  TreeNames names;
  for (std::string path : paths) {
    names.files.insert(path.substr(path.rfind('/') + 1));
    while (!path.empty()) {
      names.paths.insert(path);
      path = folder_of(path);
    }
  }
  for (const SourceFile& file : texts) {
    if (is_page(file.path)) names.anchors[file.path] = anchors_of(file.text);
  }
  return names;
}

Faults link_faults(const SourceFile& page, const TreeNames& names) {
  Faults faults;
  if (!is_page(page.path)) return faults;
  for_each_text_line(page.text, true, [&](int number, std::string_view line) {
    for (std::size_t at = line.find("]("); at != std::string_view::npos;
         at = line.find("](", at + 1)) {
      const std::string_view rest = line.substr(at + 2);
      const std::string_view target = rest.substr(0, rest.find_first_of(") "));
      if (target.find("://") != std::string_view::npos || target.starts_with("mailto:")) continue;
      const std::string problem = link_problem(page, target, names);
      if (!problem.empty()) faults.push_back({page.path, number, problem});
    }
  });
  return faults;
}

Faults path_faults(const SourceFile& file, const TreeNames& names) {
  Faults faults;
  const auto belongs = [](char c) {
    return is_plain(c) || std::string_view("./<>*{}$%~+-").find(c) != std::string_view::npos;
  };
  for_each_comment(file, [&](int number, std::string_view line) {
    for (auto at = line.begin(); at != line.end();) {
      const auto begin = std::find_if(at, line.end(), belongs);
      const auto end = std::find_if_not(begin, line.end(), belongs);
      at = end;
      std::string_view word = line.substr(static_cast<std::size_t>(begin - line.begin()),
                                          static_cast<std::size_t>(end - begin));
      while (word.ends_with('.')) word.remove_suffix(1);
      if (word.starts_with("//")) continue;  // of an address
      if (word.starts_with("./")) word.remove_prefix(2);
      const std::string problem = path_problem(word, file, names);
      if (!problem.empty()) faults.push_back({file.path, number, problem});
    }
  });
  return faults;
}

}  // namespace trireme::house
