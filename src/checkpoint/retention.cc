#include "checkpoint/retention.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/manifest.h"

namespace trireme {

namespace {

constexpr std::string_view kTrashPrefix = ".trash-", kUnfinished = ".tmp-";

/// Calls `work` on each folder below `directory`; collects what it throws, a line each.
std::string for_each_folder(const std::filesystem::path& directory,
                            const std::function<void(const std::filesystem::path&)>& work) {
  std::string problems;
  const auto note = [&](const std::string& text) {
    problems += (problems.empty() ? "" : "\n") + text;
  };
  std::error_code code;
  std::vector<std::filesystem::path> folders;
  for (std::filesystem::directory_iterator at(directory, code), end; !code && at != end;
       at.increment(code)) {
    std::error_code ignored;
    if (at->is_directory(ignored) && !at->is_symlink(ignored)) folders.push_back(at->path());
  }
  if (code && code != std::errc::no_such_file_or_directory)
    note(fmt::format("{}: {}", directory.string(), code.message()));
  for (const std::filesystem::path& folder : folders) {
    try {
      work(folder);
    } catch (const std::exception& error) {
      note(error.what());
    }
  }
  return problems;
}

void delete_tree(const std::filesystem::path& folder) {
  std::error_code code;
  std::filesystem::remove_all(folder, code);
  if (code) throw DataError("{}: cannot remove: {}", folder.string(), code.message());
}

}  // namespace

std::vector<std::int64_t> steps_to_remove(std::vector<std::int64_t> steps, std::int64_t saved,
                                          const Retention& retention) {
  std::vector<std::int64_t> going;
  if (retention.keep_last <= 0) return going;
  std::sort(steps.begin(), steps.end(), std::greater<>());
  std::int64_t kept = saved == retention.best ? 0 : 1;
  for (const std::int64_t step : steps) {
    if (step >= saved || step == retention.best) continue;
    if (step != retention.superseded && kept < retention.keep_last) {
      ++kept;
    } else if (retention.keep_every_steps <= 0 || step % retention.keep_every_steps != 0) {
      going.push_back(step);
    }
  }
  return going;
}

void point_best(const std::filesystem::path& directory, std::int64_t step) {
  const std::filesystem::path link = directory / kBestName;
  const std::filesystem::path fresh =
      directory / fmt::format("{}{}{}", kBestName, kUnfinished, unique_suffix());
  std::error_code code, ignored;
  std::filesystem::create_symlink(step_folder_name(step), fresh, code);
  if (code) throw DataError("{}: cannot make this link: {}", fresh.string(), code.message());
  std::filesystem::rename(fresh, link, code);
  if (code) {
    std::filesystem::remove(fresh, ignored);
    throw DataError("{}: cannot be replaced by a link to step {}: {}", link.string(), step,
                    code.message());
  }
  sync_path(directory);
}

std::int64_t step_of_best(const std::filesystem::path& directory) {
  std::error_code code;
  const std::filesystem::path target = std::filesystem::read_symlink(directory / kBestName, code);
  return code ? -1 : step_of_folder_name(target.string());
}

std::string unique_suffix() {
  static std::atomic<int> calls{0};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("{:x}-{:x}-{:x}", ::getpid(),
                     std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(), calls++);
}

void remove_folder(const std::filesystem::path& folder) {
  const std::filesystem::path trash =
      folder.parent_path() /
      fmt::format("{}{}-{}", kTrashPrefix, folder.filename().string(), unique_suffix());
  std::error_code code;
  std::filesystem::rename(folder, trash, code);
  if (code) throw DataError("{}: cannot rename to remove it: {}", folder.string(), code.message());
  delete_tree(trash);
}

std::string remove_old_checkpoints(const std::filesystem::path& directory, std::int64_t saved,
                                   const Retention& retention) {
  const std::int64_t pointed_to = step_of_best(directory);
  std::vector<std::int64_t> steps;
  std::string problems = for_each_folder(directory, [&](const std::filesystem::path& folder) {
    const std::int64_t step = step_of_folder_name(folder.filename().string());
    if (step >= 0 && (step != pointed_to || step == saved)) steps.push_back(step);
  });
  for (const std::int64_t step : steps_to_remove(std::move(steps), saved, retention)) {
    try {
      remove_folder(directory / step_folder_name(step));
    } catch (const std::exception& error) {
      problems += (problems.empty() ? "" : "\n") + std::string(error.what());
    }
  }
  return problems;
}

std::string remove_leftovers(const std::filesystem::path& directory) {
  std::error_code code;
  for (std::filesystem::directory_iterator at(directory, code), end; !code && at != end;
       at.increment(code)) {
    std::error_code ignored;
    const std::string name = at->path().filename().string();
    if (name.starts_with(std::string(kBestName).append(kUnfinished)) && at->is_symlink(ignored))
      std::filesystem::remove(at->path(), ignored);
  }
  return for_each_folder(directory, [](const std::filesystem::path& folder) {
    const std::string name = folder.filename().string();
    const std::size_t mark = name.find(kUnfinished);
    const bool unfinished =
        mark != std::string::npos && step_of_folder_name(name.substr(0, mark)) >= 0;
    if (unfinished || name.starts_with(kTrashPrefix)) delete_tree(folder);
  });
}

}  // namespace trireme
