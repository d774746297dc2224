#pragma once
// Scripts that make a shell complete the words of this program: commands, options, values of a set,
// config keys behind --set, files and folders. Pure: text of what commands declare.

#include <string>
#include <vector>

#include "commands/command_table.h"

namespace trireme {

/// A key that --set takes, with the values of an enumeration.
struct ConfigKey {
  std::string path;  ///< "optimizer.kind"
  std::vector<std::string> values;
};

/// From the field table.
std::vector<ConfigKey> config_keys();

std::string bash_completion(const std::vector<CommandText>& commands,
                            const std::vector<ConfigKey>& keys);
std::string zsh_completion(const std::vector<CommandText>& commands,
                           const std::vector<ConfigKey>& keys);
std::string fish_completion(const std::vector<CommandText>& commands,
                            const std::vector<ConfigKey>& keys);

}  // namespace trireme
