// manifest.json as text. What is accepted prints to a manifest that reads back equal, and its
// tensors have sizes that can be computed with.
#include "base/hash.h"
#include "checkpoint/boxes.h"
#include "checkpoint/manifest.h"
#include "fuzz_support.h"

using namespace trireme;
using namespace trireme::fuzz;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::string_view kSource = "step-00000003/manifest.json";
  (void)accepted({{ExitCode::kData}, kSource}, [&] {
    const Manifest manifest = parse_manifest(text_of(data, size), kSource);
    const std::string text = manifest_text(manifest);
    require(parse_manifest(text, kSource) == manifest, "a manifest prints to another");
    require(manifest.bytes() >= 0, "negative bytes");
    for (const ManifestTensor& tensor : manifest.tensors) {
      require(manifest.find(tensor.name)->name == tensor.name, "a tensor that is not found");
      std::int64_t count = 0;
      for (const ManifestShard& shard : tensor.shards) {
        require(lies_inside(shard.box, tensor.shape), "a box outside of its tensor");
        require(shard.file.find('/') == std::string::npos, "a file outside of the folder");
        count += shard.box.shape.count();
      }
      for (const ManifestRun& run : tensor.runs) {
        require(lies_inside(run.box, tensor.shape), "a run outside of its tensor");
        require(run.rank_of(run.count - 1) >= run.rank, "ranks that descend");
        count += run.count * run.piece(run.count - 1).shape.count();
      }
      require(count == tensor.shape.count(), "shards that do not make up their tensor");
    }
    check_folder_name("step-00000003", manifest);
  });
  return 0;
}

/// Changes the text and, mostly, makes its own hash right again: behind the hash stands nothing,
/// but a file may come without one.
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t size_max,
                                    unsigned seed) {
  std::string text(text_of(data, size));
  mutate_part(text, size_max);
  if (seed % 4 == 0) {
    try {
      Json json = parse_json(text, "");
      if (json.is_object()) {
        json.erase("manifest_xxh3_128");
        json["manifest_xxh3_128"] = xxh3_128_hex(json.dump());
        text = json.dump();
      }
    } catch (const Error&) {
      // No JSON any more: as it is.
    }
  }
  return give_back(text, data, size_max);
}
