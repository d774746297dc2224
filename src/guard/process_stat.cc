#include "guard/process_stat.h"

#include <fmt/format.h>

#include <fstream>

namespace trireme {

std::string fields_of_stat(std::istream& stat) {
  std::string text;
  // Not by istreambuf_iterator, out of which a failed read throws.
  std::getline(stat, text, '\0');
  const auto name_end = text.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= text.size() ? ""
                                                                      : text.substr(name_end + 2);
}

std::string process_stat(std::int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  return fields_of_stat(file);
}

}  // namespace trireme
