#pragma once

#include <set>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace trireme {

/// The names of all ranks: a tensor is missing or left over only where no rank has it. Collective.
std::set<std::string> union_of_names(const std::vector<std::string>& mine, Communicator& world);

/// " Missing: a, b. Not in the model: c." without a part that is empty; long lists are cut.
std::string mismatch_text(const std::vector<std::string>& missing,
                          const std::vector<std::string>& surplus);

/// "a, b, c and 7 more"
std::string listed(const std::vector<std::string>& names, std::size_t names_max);

}  // namespace trireme
