#pragma once
// What a page or picture must be before anybody looks at it.

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace trireme {

inline std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size())
    ++found;
  return found;
}

/// Every element closed by its own name, one root, quotes paired, no bare & or control character.
inline testing::AssertionResult is_well_formed(std::string_view xml) {
  std::vector<std::string> open;
  int roots = 0;
  for (std::size_t at = 0; at < xml.size();) {
    if (xml[at] != '<') {
      if (xml[at] == '&' && xml.substr(at, 5) != "&amp;" && xml.substr(at, 4) != "&lt;" &&
          xml.substr(at, 4) != "&gt;" && xml.substr(at, 6) != "&quot;") {
        return testing::AssertionFailure() << "bare & at " << at;
      }
      if (static_cast<unsigned char>(xml[at]) < 0x20 && xml[at] != '\n') {
        return testing::AssertionFailure() << "control character at " << at;
      }
      if (open.empty() && xml[at] != '\n')
        return testing::AssertionFailure() << "text outside the root at " << at;
      ++at;
      continue;
    }
    const std::size_t end = xml.find('>', at);
    if (end == std::string_view::npos)
      return testing::AssertionFailure() << "tag without end at " << at;
    const std::string_view tag = xml.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag.starts_with('?') || tag == "!doctype html") continue;
    if (count(tag, "\"") % 2 != 0 || tag.find('<') != std::string_view::npos) {
      return testing::AssertionFailure() << "broken tag " << tag;
    }
    const std::string name(tag.substr(0, tag.find_first_of(" /", 1)));
    if (tag.starts_with('/')) {
      if (open.empty() || "/" + open.back() != name)
        return testing::AssertionFailure() << name << " closes nothing";
      open.pop_back();
    } else {
      roots += open.empty();
      if (!tag.ends_with('/')) open.push_back(name);
    }
  }
  if (roots != 1 || !open.empty())
    return testing::AssertionFailure() << roots << " roots, " << open.size() << " open";
  return testing::AssertionSuccess();
}

}  // namespace trireme
