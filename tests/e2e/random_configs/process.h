#pragma once
// Programs of other processes, and what they leave.

#include <filesystem>
#include <string>
#include <vector>

#include "support/temporary_directory.h"

namespace trireme {

struct Ended {
  int code = 0;  ///< 128 + signal where one ended it
  std::string out, log;
};

/// Runs a program in `folder`, its outputs in NAME.out and NAME.log there.
Ended run_program(const std::vector<std::string>& arguments, const std::filesystem::path& folder,
                  const std::string& name);

}  // namespace trireme
