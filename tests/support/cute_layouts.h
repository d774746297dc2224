#pragma once
// The tables that CuTe's host code wrote, tests/golden/cute_layouts.txt: "swizzle 128: 0 16 ..".
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace trireme {

struct CuteLayout {
  std::vector<std::string> head;  ///< what stands before the colon: "matrix", "128", "2", ..
  std::vector<int> values;
};

inline std::vector<CuteLayout> cute_layouts(const std::string& kind) {
  std::ifstream file(std::string(TRIREME_GOLDEN) + "/cute_layouts.txt");
  std::vector<CuteLayout> layouts;
  for (std::string text; std::getline(file, text);) {
    const std::size_t colon = text.find(':');
    std::istringstream head(text.substr(0, colon)), values(text.substr(colon + 1));
    CuteLayout layout;
    for (std::string word; head >> word;) layout.head.push_back(word);
    for (int value; values >> value;) layout.values.push_back(value);
    if (layout.head[0] == kind) layouts.push_back(layout);
  }
  return layouts;
}

}  // namespace trireme
