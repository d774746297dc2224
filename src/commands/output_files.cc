#include "commands/output_files.h"

#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "base/error.h"
#include "base/file.h"

namespace trireme {

namespace {

void check_folder(const std::filesystem::path& file) {
  const std::filesystem::path parent = file.has_parent_path() ? file.parent_path() : ".";
  if (!is_there(parent)) {
    throw DataError("--output: the folder {} does not exist. Make it: mkdir -p {}", parent.string(),
                    parent.string());
  }
  if (!is_folder(parent))
    throw DataError("--output {}: {} is no folder", file.string(), parent.string());
  if (::access(parent.c_str(), W_OK | X_OK) != 0) {
    throw DataError("--output: nothing can be written in {}: {}", parent.string(),
                    errno_text(errno));
  }
}

}  // namespace

void check_output_files(const std::vector<std::filesystem::path>& written,
                        const std::vector<std::string>& read, bool overwrite) {
  for (const std::filesystem::path& file : written) {
    std::error_code absent;
    for (const std::string& path : read) {
      if (path != "-" && std::filesystem::equivalent(path, file, absent)) {
        throw ConfigError("--output: {} is read and would be overwritten. Choose another output",
                          file.string());
      }
    }
    if (is_folder(file)) throw DataError("--output: {} is a folder. Name a file", file.string());
    if (!overwrite && is_there(file)) {
      throw ConfigError(
          "--output: {} exists (it is not overwritten unasked). Choose another name, or give "
          "--overwrite",
          file.string());
    }
    check_folder(file);
  }
}

void check_picture_file(const std::filesystem::path& file) {
  if (!is_there(file) || is_folder(file)) return;
  std::string begin(200, '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.read(begin.data(), std::ssize(begin));
  if (begin.find("<svg") == std::string::npos) {
    throw ConfigError(
        "--svg: {} exists and is no picture (it would be overwritten). Choose another name",
        file.string());
  }
}

}  // namespace trireme
