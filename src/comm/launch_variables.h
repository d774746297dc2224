#pragma once

#include <functional>
#include <string>

namespace trireme {

/// What a launcher's variables say of this process.
struct LaunchVariables {
  int ranks = 1;       ///< 1: alone; 0: several or one, only MPI knows
  std::string source;  ///< "OMPI_COMM_WORLD_SIZE=4", the variable that says so
  bool pmix = false;   ///< the launcher speaks what Open MPI listens to
};

/// Reads the variables of Open MPI, PMIx, PMI (MPICH, Intel MPI, MVAPICH), Slurm and torchrun.
/// `get` as getenv. A Slurm batch shell is alone; text that is no number counts as unset.
LaunchVariables read_launch_variables(const std::function<const char*(const char*)>& get);

}  // namespace trireme
