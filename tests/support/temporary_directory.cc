#include "support/temporary_directory.h"

#include <stdlib.h>

#include <fstream>

#include "base/error.h"

namespace trireme {

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "trireme-test-XXXXXX").string();
  expect(::mkdtemp(pattern.data()) != nullptr, "cannot make {}", pattern);
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path TemporaryDirectory::write(std::string_view name,
                                                std::string_view content) const {
  const std::filesystem::path file = path_ / name;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << content;
  return file;
}

}  // namespace trireme
