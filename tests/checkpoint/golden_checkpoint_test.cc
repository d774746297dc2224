// Checkpoints of every format that was ever written are read; their values are those that h5py saw.

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/reader.h"
#include "support/golden.h"
#include "test_state.h"

namespace trireme {
namespace {

TEST(GoldenCheckpoint, every_format_is_read_to_the_same_bits) {
  int formats = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden_path("checkpoint"))) {
    SCOPED_TRACE(entry.path());
    ++formats;
    const Json values = parse_json(read_file(entry.path() / "values.json"), "values.json");
    const auto found = find_checkpoints(entry.path());
    ASSERT_EQ(found.size(), 1U);
    ASSERT_EQ(found[0].problem, "");
    EXPECT_TRUE(verify_checkpoint(found[0].path).empty());
    TestState state;
    for (const auto& [name, value] : values.as_object()) {
      std::vector<std::int64_t> sizes;
      for (const Json& size : value.find("shape")->as_array()) sizes.push_back(size.as_integer());
      state.add_whole(name, Shape(std::span<const std::int64_t>(sizes)));
    }
    const auto world = make_self_communicator();
    const Manifest manifest = load_state(found[0].path, state.state(), *world);
    EXPECT_EQ(manifest.step, 3);
    EXPECT_EQ(manifest.consumed_samples, 12);
    EXPECT_EQ(manifest.scalars.find("applied_updates")->as_integer(), 3);
    for (const StateTensor& tensor : state.state().tensors) {
      const auto bytes = static_cast<std::size_t>(tensor.box.shape.count()) * size_of(tensor.dtype);
      EXPECT_EQ(xxh3_128_hex(std::span<const std::byte>(tensor.data, bytes)),
                values.find(tensor.name)->find("xxh3_128")->as_string())
          << tensor.name;
    }
  }
  EXPECT_GE(formats, 1);
}

}  // namespace
}  // namespace trireme
