#pragma once
// What a person may have meant by a word that is none of those which are known.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// The candidate of least edit distance (case, '-' and '_' count for nothing) below half the word.
std::optional<std::string> nearest_word(std::string_view word,
                                        const std::vector<std::string>& candidates);

}  // namespace trireme
