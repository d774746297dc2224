#include "checkpoint/virtual_view.h"

#include "checkpoint/hdf5_file.h"
#include "checkpoint/store_file.h"

namespace trireme {

void write_virtual_view(const std::filesystem::path& folder, const Manifest& manifest) {
  Hdf5Writer view(folder / kVirtualViewName);
  for (const ManifestTensor& tensor : manifest.tensors) {
    // Virtual datasets have at least one dim and one element; one number or none is copied instead.
    if (tensor.shape.rank() > 0 && tensor.shape.count() > 0) {
      std::vector<Hdf5Writer::VirtualPart> parts;
      for (const ManifestShard& shard : tensor.shards)
        parts.push_back({shard.file, shard.dataset, shard.box});
      view.write_virtual(tensor.name, tensor.dtype, tensor.shape, parts);
      continue;
    }
    std::vector<std::byte> value(static_cast<std::size_t>(tensor.shape.count()) *
                                 size_of(tensor.dtype));
    for (const ManifestShard& shard : tensor.shards) {
      StoreFile(folder / shard.file).read(shard.byte_offset, value);
    }
    view.write(tensor.name, tensor.dtype, tensor.shape, value);
  }
  view.finish();
}

}  // namespace trireme
