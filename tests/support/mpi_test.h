#pragma once

#include "comm/launch.h"

namespace trireme {

/// The process's launch and its world, for *_mpi_test.cc (defined in mpi_main.cc). Every rank runs
/// every test in the same order; a test that fails or throws on one rank fails on all.
Launch& test_launch();
Communicator& test_world();

}  // namespace trireme
