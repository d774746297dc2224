#pragma once
// What a rank says of its software and its machine.

#include <filesystem>
#include <string>
#include <vector>

#include "config/parse.h"
#include "device/nvml.h"
#include "device/topology.h"

namespace trireme {

/// What every rank should have alike.
struct Fact {
  const char* name;
  std::string text;    ///< "": nothing to say
  const char* advice;  ///< where one differs
};

/// Where a machine's state is read.
struct MachineSources {
  std::filesystem::path sys = "/sys";
  std::string nvml = kNvml;
};

/// The program, by what of it is the same wherever it was built from the same sources, and by its
/// bytes.
Fact program_fact();

struct FactRequest {
  const ConfigInput* input = nullptr;  ///< null: no config
  std::string run_directory;           ///< of the config
  const Placement& placement;
  bool first_of_host = true;  ///< which says what is the host's
  const MachineSources& sources;
};
/// The same names in the same order on every rank.
std::vector<Fact> facts_of_rank(const FactRequest& request);

/// Memory errors that a GPU could not correct, and what lowers its clocks now; "" where all is well
/// or nothing is known.
std::string gpu_fault(const Device& device, const MachineSources& sources);

/// How often each port of the host's fabric has gone down so far: "mlx5_0/1 3"; "" without one.
std::string times_down(const MachineSources& sources);

}  // namespace trireme
