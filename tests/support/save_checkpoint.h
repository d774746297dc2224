#pragma once

#include <optional>
#include <utility>

#include "base/error.h"
#include "checkpoint/async_writer.h"

namespace trireme {

/// Collective. Begins a save and waits for its end; the tensors are in host memory.
inline SaveResult save_checkpoint(const SaveRequest& request, Communicator& world) {
  expect(request.state != nullptr, "a save without state");
  AsyncWriter writer(world, *request.state, {2 * kShardBytesMax, nullptr, Meanwhile::kStay});
  if (std::optional<SaveResult> failed = writer.begin(request)) return *std::move(failed);
  return writer.finish();
}

}  // namespace trireme
