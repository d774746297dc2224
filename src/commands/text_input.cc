#include "commands/text_input.h"

#include <cstdio>

#include "base/error.h"
#include "base/file.h"

namespace trireme {

std::string read_text_input(const std::string& file, std::size_t bytes_max) {
  if (file != "-") return read_file(file, bytes_max);
  std::string text;
  char block[4096];
  while (const std::size_t count = std::fread(block, 1, sizeof block, stdin)) {
    text.append(block, count);
    if (text.size() > bytes_max)
      throw DataError("standard input: is longer than {} MiB", bytes_max >> 20);
  }
  if (std::ferror(stdin) != 0) throw DataError("standard input: cannot be read");
  return text;
}

}  // namespace trireme
