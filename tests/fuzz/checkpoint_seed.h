#pragma once
// The small checkpoint that the checkpoint fuzzer attacks.

#include "base/file.h"
#include "checkpoint/async_writer.h"
#include "checkpoint/test_state.h"
#include "fuzz_support.h"
#include "support/save_checkpoint.h"

namespace trireme::fuzz {

inline constexpr std::uint64_t kSeedSalt = 3;

/// Every type, an empty tensor, a scalar, tensors in several shards.
inline void add_seed_tensors(TestState& state) {
  state.add_whole("parameters/nothing", Shape{0, 2});
  state.add_whole("parameters/embed.weight", Shape{5, 3});
  state.add_whole("parameters/scale", Shape{});
  state.add_whole("parameters/half.weight", Shape{2, 3}, DType::kBF16);
  state.add_whole("optimizer/embed.weight/exp_avg", Shape{5, 3}, DType::kF64);
  state.add_whole("optimizer/count", Shape{1}, DType::kI32);
}

struct SeedCheckpoint {
  std::string manifest, file;
};

/// Saves it as step-00000003 of `directory`, its shards listed in the manifest or in the store.
inline SeedCheckpoint make_seed_checkpoint(const std::filesystem::path& directory, bool split) {
  TestState state;
  add_seed_tensors(state);
  state.fill(kSeedSalt);
  state.state().scalars["applied_updates"] = 3;
  SaveRequest request = request_for(directory, 3, state.state());
  request.shard_bytes_max = 24;
  if (split) request.listed_shards_max = 0;
  const auto world = make_self_communicator();
  const SaveResult saved = save_checkpoint(request, *world);
  if (!saved.saved()) defect(saved.error);
  return {read_file(saved.path / "manifest.json"), read_file(saved.path / "rank-00000.h5")};
}

}  // namespace trireme::fuzz
