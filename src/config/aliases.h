#pragma once
// What an unknown key probably means: our name of what other systems call so, or the nearest key.

#include <map>
#include <string>
#include <string_view>

namespace trireme {

/// Other systems' names, lower case with '_', without leading dashes -> path of ours. From their
/// columns of the field table and a list of further common spellings.
const std::map<std::string, std::string, std::less<>>& key_aliases();

/// Our path of a name that means one of our keys exactly: another system's, a section left out, a
/// command-line option ("--micro-batch-size"); "" where it is none.
std::string known_key(std::string_view name);

/// The path nearest to an unknown key, given with its path ("optimizer.learning_rate") or as a
/// command-line option ("--micro-batch-size"); empty where nothing is near.
std::string nearest_key(std::string_view path);

}  // namespace trireme
