#include "base/program_files.h"

#include <system_error>

namespace trireme {

namespace {

std::filesystem::path if_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) ? path : std::filesystem::path();
}

std::filesystem::path installed_file(std::string_view name) {
  std::error_code no_proc;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", no_proc);
  if (no_proc) return {};
  // The way from the program's folder to its data comes from the build (src/CMakeLists.txt).
  return if_there((program.parent_path() / TRIREME_DATA_FROM_PROGRAM / name).lexically_normal());
}

}  // namespace

std::filesystem::path find_program_file(std::string_view name) {
  const std::filesystem::path installed = installed_file(name);
  return installed.empty() ? if_there(std::filesystem::path(TRIREME_SOURCE_TREE) / name)
                           : installed;
}

std::string program_file_to_type(std::string_view name) {
  const std::filesystem::path installed = installed_file(name);
  return installed.empty() ? std::string(name) : installed.string();
}

}  // namespace trireme
