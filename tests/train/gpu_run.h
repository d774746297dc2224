#pragma once

#include "plan/resolve.h"
#include "support/mpi_test.h"
#include "train/prepare.h"

namespace trireme {

/// The config resolved for GPUs on the ranks of the test: "auto" finds no real GPU where the host
/// plays one. Throws where the rules refuse it.
inline PreparedRun prepare_for_gpus(const RunConfig& config) {
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  ResolveInput input;
  input.world = test_world().size();
  PreparedRun prepared;
  prepared.config = config;
  prepared.run = resolve_run(config, input, problems, notes);
  expect(problems.empty(), "{}", format_problems(problems));
  prepared.run.device = DeviceKind::kCuda;
  prepared.run.compute = compute_type(config, DeviceKind::kCuda);
  prepared.run.sums = reduction_order(config, DeviceKind::kCuda);
  return prepared;
}

}  // namespace trireme
