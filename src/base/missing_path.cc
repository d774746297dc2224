#include "base/missing_path.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "base/file.h"
#include "base/nearest_word.h"

namespace trireme {

namespace {

/// "name" or "owner/name", of letters that the Hub allows, and no local file's name.
bool is_hub_name(const std::string& text) {
  constexpr std::size_t kLengthMax = 96;
  if (text.empty() || text.size() > kLengthMax || text.front() == '.' || text.back() == '/')
    return false;
  const auto legal = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '/';
  };
  if (!std::all_of(text.begin(), text.end(), legal)) return false;
  const auto slash = text.find('/');
  if (slash == 0 || (slash != std::string::npos && text.find('/', slash + 1) != std::string::npos))
    return false;
  if (slash != std::string::npos && is_there(text.substr(0, slash))) return false;
  // Versions stand in names ("Llama-3.1-8B"); letters alone behind the last dot are a file's.
  const auto dot = text.rfind('.');
  return dot == std::string::npos ||
         !std::all_of(text.begin() + static_cast<std::ptrdiff_t>(dot) + 1, text.end(),
                      [](unsigned char c) { return std::isalpha(c) != 0; });
}

/// What is called nearly so in the folder, with the same extension or, whatever it is, the same
/// stem; "" where nothing is. Of a very large folder a part is looked at.
std::string nearest_in(const std::filesystem::path& folder, const std::filesystem::path& name) {
  constexpr std::size_t kEntriesMax = 4096, kLengthMax = 256;
  if (name.native().size() > kLengthMax) return "";
  std::vector<std::string> stems, same_stem;
  std::error_code stop;
  std::filesystem::directory_iterator entry(folder, stop), end;
  for (std::size_t count = 0; !stop && entry != end && count < kEntriesMax; ++count) {
    const std::filesystem::path there = entry->path().filename();
    if (there.extension() == name.extension()) stems.push_back(there.stem().string());
    if (there.stem() == name.stem()) same_stem.push_back(there.string());
    entry.increment(stop);
  }
  std::sort(stems.begin(), stems.end());  // the answer is no matter of the file system
  if (const auto stem = nearest_word(name.stem().string(), stems))
    return *stem + name.extension().string();
  const auto least = std::min_element(same_stem.begin(), same_stem.end());
  return least == same_stem.end() ? "" : *least;
}

}  // namespace

std::string missing_path_text(const std::filesystem::path& path) {
  const std::string out = fmt::format("{}: there is no such file or folder", path.string());
  std::filesystem::path above = (path / "").parent_path(), missing = above.filename();
  for (above = above.parent_path(); !above.empty() && !is_there(above);) {
    if (above == above.parent_path()) return out;
    missing = above.filename();
    above = above.parent_path();
  }
  if (missing.empty()) return out;
  const std::string near = nearest_in(above.empty() ? "." : above, missing);
  if (above.empty()) return near.empty() ? out : fmt::format("{} (nearest: {})", out, near);
  return out + fmt::format(" ({} is there, and {} in it is not{})", above.string(),
                           missing.string(), near.empty() ? "" : "; nearest: " + near);
}

std::string missing_model_text(const std::filesystem::path& path) {
  if (!is_hub_name(path.string())) return missing_path_text(path);
  return fmt::format(
      "{0}: there is no such file or folder (and nothing is downloaded by name). Where there is a "
      "network, `hf download {0} --local-dir DIR` of huggingface_hub fetches it; then give DIR",
      path.string());
}

}  // namespace trireme
