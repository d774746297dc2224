// A step folder: the parts of an input are its manifest and its HDF5 file (empty: the true ones).
// Under the true manifest, what loads is what was saved, and what verifies is the very file.
#include <algorithm>

#include "base/file.h"
#include "checkpoint/reader.h"
#include "checkpoint_seed.h"
#include "fuzz_support.h"

using namespace trireme;
using namespace trireme::fuzz;

namespace {

constexpr std::size_t kParts = 2;
constexpr std::int64_t kTensorBytesMax = 1 << 20;

/// A manifest part that stands for the true manifest of the split checkpoint.
constexpr std::string_view kTrueSplit = "split";

/// The checkpoint that a manifest part belongs to.
const SeedCheckpoint& seed_checkpoint(std::string_view manifest) {
  static const SeedCheckpoint listed = make_seed_checkpoint(folder(), false);
  static const SeedCheckpoint split = make_seed_checkpoint(folder(), true);
  const bool of_split =
      manifest == kTrueSplit || manifest.find("\"runs\"") != std::string_view::npos;
  return of_split ? split : listed;
}

void check_verified(const std::filesystem::path& step, bool true_file) {
  const std::vector<CheckpointFault> faults = verify_checkpoint(step);
  require(faults.empty() == true_file, "verify and the file's bytes disagree");
  for (const CheckpointFault& fault : faults) {
    require_readable(fault.text, 1);
    require(fault.text.find(step.string()) != std::string::npos, "a fault that names no file");
  }
}

void check_loaded(const std::filesystem::path& step, bool true_manifest) {
  const auto world = make_self_communicator();
  TestState state;
  add_seed_tensors(state);
  state.clear();
  (void)load_state(step, state.state(), *world);
  if (!true_manifest) return;
  const std::string differs = state.first_difference(kSeedSalt);
  if (!differs.empty()) defect(fmt::format("{} loaded otherwise than it was saved", differs));
}

void read_tensors(const std::filesystem::path& step) {
  const Manifest manifest = read_manifest(step);
  TensorReader reader(step, manifest);
  for (const ManifestTensor& tensor : manifest.tensors) {
    const std::int64_t bytes =
        tensor.shape.count() * static_cast<std::int64_t>(size_of(tensor.dtype));
    if (bytes > kTensorBytesMax) continue;
    std::vector<std::byte> values(static_cast<std::size_t>(bytes));
    reader.read(tensor, values.data());
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> parts = split_parts(text_of(data, size), kParts);
  const SeedCheckpoint& seed = seed_checkpoint(parts[0]);
  if (parts[1].empty()) parts[1] = seed.file;
  const std::filesystem::path step = folder() / "step-00000003";
  const bool true_manifest = parts[0].empty() || parts[0] == kTrueSplit;
  put("step-00000003/manifest.json", true_manifest ? seed.manifest : parts[0]);
  put("step-00000003/rank-00000.h5", parts[1]);
  const std::string place = step.string();
  const Expected expected{{ExitCode::kData}, place};
  (void)accepted(expected, [&] {
    if (true_manifest) {
      check_verified(step, parts[1] == seed.file);
    } else {
      (void)verify_checkpoint(step);
    }
  });
  (void)accepted(expected, [&] { check_loaded(step, true_manifest); });
  (void)accepted(expected, [&] { read_tensors(step); });
  const std::vector<CheckpointInfo> listed = list_checkpoints(folder());
  require(listed.size() == 1, "a step folder that is not listed");
  if (!listed[0].problem.empty()) require_readable(listed[0].problem, 1);
  return 0;
}

/// An empty manifest part stays empty mostly: the property of the true manifest is the strongest.
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t size_max,
                                    unsigned seed) {
  std::vector<std::string> parts = split_parts(text_of(data, size), kParts);
  const std::size_t room = size_max - std::min(size, size_max);
  const SeedCheckpoint& checkpoint = seed_checkpoint(parts[0]);
  const bool true_manifest = parts[0].empty() || parts[0] == kTrueSplit;
  const bool manifest = true_manifest ? seed % 16 == 0 : seed % 4 != 0;
  std::string& part = parts[manifest ? 0 : 1];
  if (manifest && parts[0] == kTrueSplit) part = checkpoint.manifest;
  // The library notes the time in a file, so that the true one is new in each process.
  if (!manifest && part.empty()) part = checkpoint.file;
  mutate_part(part, part.size() + room);
  return give_back(join_parts(parts), data, size_max);
}
