#include <string>
#include <vector>

#include "base/standard_streams.h"
#include "base/stop_flag.h"
#include "checkpoint/hdf5_file.h"
#include "commands/commands.h"
#include "device/openmp_setup.h"

int main(int argc, char** argv) {
  trireme::hold_standard_streams();
  trireme::set_up_openmp(argv);
  trireme::initialise_hdf5();  // before anything else of HDF5
  trireme::install_stop_handlers();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return trireme::run_command_line(arguments);
}
