#include "checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/json.h"

namespace trireme {
namespace {

const std::string kHash(32, 'a');

Manifest sample() {
  Manifest manifest;
  manifest.step = 100;
  manifest.consumed_samples = 800;
  manifest.mesh["data"] = 2;
  manifest.scalars["lr"] = 3e-4;
  manifest.files.push_back({"tokenizer.json", 12, kHash});
  manifest.stores = {{"rank-00000.h5", 200, kHash}, {"rank-00001.h5", 164, kHash}};
  manifest.tensors.push_back(
      {"parameters/a",
       DType::kF32,
       Shape{4, 6},
       {{"rank-00000.h5", "parameters/a/at-0-0", 100, {Shape{0, 0}, Shape{4, 2}}, kHash},
        {"rank-00001.h5", "parameters/a/at-0-2", 100, {Shape{0, 2}, Shape{4, 4}}, kHash}}});
  manifest.tensors.push_back({"parameters/b", DType::kBF16, Shape{0, 3}, {}});
  manifest.tensors.push_back({"parameters/c",
                              DType::kF64,
                              Shape{},
                              {{"rank-00000.h5", "parameters/c/at", 192, {}, kHash}}});
  return manifest;
}

TEST(Manifest, reads_back_what_it_wrote) {
  const Manifest manifest = sample();
  EXPECT_EQ(parse_manifest(manifest_text(manifest), "m"), manifest);
  EXPECT_EQ(manifest.bytes(), 4 * 6 * 4 + 8);
  EXPECT_EQ(manifest.find("parameters/c")->dtype, DType::kF64);
  EXPECT_EQ(manifest.find("parameters/d"), nullptr);
}

TEST(Manifest, one_of_another_tool_needs_no_hash_of_its_own) {
  Json json = parse_json(manifest_text(sample()), "m");
  EXPECT_TRUE(json.erase("manifest_xxh3_128"));
  json["consumed_samples"] = 900;
  EXPECT_EQ(parse_manifest(json.dump(), "m").consumed_samples, 900);
}

TEST(Manifest, a_shard_lies_inside_of_a_file_that_is_known) {
  const auto fault = [](const auto& change) {
    Manifest manifest = sample();
    change(manifest);
    try {
      parse_manifest(manifest_text(manifest), "m");
      return std::string();
    } catch (const DataError& error) {
      return std::string(error.what());
    }
  };
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  std::int64_t& (*const offset)(Manifest&) = [](Manifest& m) -> std::int64_t& {
    return m.tensors[0].shards[1].byte_offset;
  };
  EXPECT_EQ(fault([&](Manifest& m) { offset(m) = 101; }),
            "m: tensors.parameters/a: 64 bytes at 101 are beyond the 164 of rank-00001.h5");
  EXPECT_NE(fault([&](Manifest& m) { offset(m) = kLargest; }), "");
  EXPECT_NE(fault([&](Manifest& m) { offset(m) = -1; }), "");
  EXPECT_NE(fault([](Manifest& m) { m.stores[1].bytes = 63; }), "");
  EXPECT_EQ(fault([](Manifest& m) { m.stores.pop_back(); }),
            "m: tensors.parameters/a: rank-00001.h5 is not among the stores");
  EXPECT_EQ(fault([](Manifest& m) { m.stores[1].file = "rank-00000.h5"; }),
            "m: stores: rank-00000.h5 stands twice");
}

TEST(Manifest, its_hash_does_not_depend_on_white_space) {
  const Json json = parse_json(manifest_text(sample()), "m");
  EXPECT_EQ(parse_manifest(json.dump(), "m"), sample());
}

TEST(Manifest, holes_and_overlaps_in_any_direction_are_found) {
  const auto fault = [](const Box& second) {
    Manifest manifest = sample();
    manifest.tensors[0].shards[1].box = second;
    try {
      check_coverage(manifest, "m");
      return std::string();
    } catch (const DataError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(fault({Shape{0, 2}, Shape{4, 4}}), "");
  EXPECT_NE(fault({Shape{0, 2}, Shape{4, 3}}).find("hold 20 of 24"), std::string::npos);
  EXPECT_NE(fault({Shape{0, 1}, Shape{4, 5}}).find("overlap"), std::string::npos);
  EXPECT_NE(fault({Shape{1, 2}, Shape{3, 4}}).find("hold 20 of 24"), std::string::npos);
}

TEST(Manifest, a_grid_of_many_shards_is_checked) {
  Manifest manifest = sample();
  ManifestTensor& tensor = manifest.tensors[0];
  tensor.shape = Shape{200, 200};
  tensor.shards.clear();
  for (std::int64_t row = 0; row < 100; ++row) {
    for (std::int64_t column = 0; column < 100; ++column) {
      tensor.shards.push_back({"f", "d", 0, {Shape{2 * row, 2 * column}, Shape{2, 2}}, kHash});
    }
  }
  check_coverage(manifest, "m");
  tensor.shards[5050].box.offset.set(1, tensor.shards[5050].box.offset[1] + 1);
  EXPECT_THROW(check_coverage(manifest, "m"), DataError);
}

TEST(Manifest, only_exact_folder_names_are_steps) {
  EXPECT_EQ(step_folder_name(100), "step-00000100");
  EXPECT_EQ(step_of_folder_name("step-00000100"), 100);
  EXPECT_EQ(step_of_folder_name("step-1234567890"), 1234567890);
  for (const char* name :
       {"step-100", "step-00000100.tmp-1", "step--0000001", "step-", "xstep-00000100",
        "step-0000000a", "step-99999999999999999999", ".trash-step-00000100-1"}) {
    EXPECT_EQ(step_of_folder_name(name), -1) << name;
  }
}

}  // namespace
}  // namespace trireme
