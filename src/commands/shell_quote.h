#pragma once

#include <string>
#include <string_view>

namespace trireme {

/// 'text' as one word of a POSIX shell.
inline std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

}  // namespace trireme
