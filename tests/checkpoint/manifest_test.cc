#include "checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/json.h"
#include "base/math.h"

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
        {"rank-00001.h5", "parameters/a/at-0-2", 100, {Shape{0, 2}, Shape{4, 4}}, kHash}},
       {}});
  manifest.tensors.push_back({"parameters/b", DType::kBF16, Shape{0, 3}, {}, {}});
  manifest.tensors.push_back({"parameters/c",
                              DType::kF64,
                              Shape{},
                              {{"rank-00000.h5", "parameters/c/at", 192, {}, kHash}},
                              {}});
  return manifest;
}

/// What its text is refused with, "" where it is read.
std::string refusal(const Manifest& manifest) {
  try {
    parse_manifest(manifest_text(manifest), "m");
    return "";
  } catch (const DataError& error) {
    return error.what();
  }
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
    return refusal(manifest);
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

/// What rank `rank` of `ranks` writes: its rows of two tensors, and on rank 0 a number.
Manifest written_by(int rank, int ranks, int columns_in) {
  Manifest part;
  part.split = true;
  part.stores.push_back({store_name(rank), 5000, kHash, ManifestIndex{100, 900, kHash}});
  const auto add = [&](const std::string& name, const Shape& shape, const Box& box) {
    ManifestTensor tensor{name, DType::kF32, shape, {}, {}};
    if (box.shape.count() > 0) tensor.runs.push_back({box, rank});
    part.tensors.push_back(std::move(tensor));
  };
  // The tensor axis is inside: rank = owner * columns_in + column.
  const int owners = ranks / columns_in;
  const Slice rows = even_slice(37, owners, rank / columns_in);
  const Slice columns = even_slice(12, columns_in, rank % columns_in);
  add("parameters/a", Shape{37, 12}, {{rows.begin, columns.begin}, {rows.size, columns.size}});
  const Slice few = even_slice(5, ranks, rank);
  add("parameters/b", Shape{5}, {{few.begin}, {few.size}});
  if (rank == 0) add("parameters/c", Shape{}, {});
  return part;
}

/// Joined as neighbours are on their way to rank 0.
Manifest joined(int first, int count, int ranks, int columns) {
  if (count == 1) return written_by(first, ranks, columns);
  int half = 1;
  while (2 * half < count) half *= 2;
  Manifest lower = joined(first, half, ranks, columns);
  join_contents(lower, parse_contents(
                           contents_text(joined(first + half, count - half, ranks, columns)), "r"));
  return lower;
}

TEST(SplitManifest, rows_of_many_ranks_are_few_runs) {
  for (const auto& [ranks, columns] :
       {std::pair{1, 1}, {2, 1}, {5, 1}, {12, 3}, {16, 2}, {64, 1}}) {
    SCOPED_TRACE(fmt::format("{} ranks, {} columns", ranks, columns));
    Manifest manifest = joined(0, ranks, ranks, columns);
    manifest.step = 3;
    EXPECT_EQ(std::ssize(manifest.stores), ranks);
    const ManifestTensor& rows = *manifest.find("parameters/a");
    EXPECT_LE(std::ssize(rows.runs), 2 * columns) << "slices of two sizes";
    EXPECT_EQ(rows.shard_count(), std::min(37, ranks / columns) * columns);
    EXPECT_EQ(parse_manifest(manifest_text(manifest), "m"), manifest);
    if (ranks < 5) continue;
    EXPECT_EQ(std::ssize(manifest.find("parameters/b")->runs), 1);
    // Every piece is what its rank wrote.
    for (const ManifestRun& run : rows.runs) {
      for (std::int64_t i = 0; i < run.count; ++i) {
        const Manifest part = written_by(narrow<int>(run.rank_of(i)), ranks, columns);
        EXPECT_EQ(run.piece(i), part.find("parameters/a")->runs[0].box);
      }
    }
  }
}

TEST(SplitManifest, refuses_runs_that_no_ranks_can_hold) {
  const auto fault = [](const auto& change) {
    Manifest manifest = joined(0, 8, 8, 1);
    change(manifest);
    return refusal(manifest);
  };
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  ManifestRun& (*const run)(Manifest&) = [](Manifest& m) -> ManifestRun& {
    return m.tensors[0].runs[0];  // 5 ranks of 5 rows
  };
  EXPECT_EQ(fault([](Manifest&) {}), "");
  EXPECT_NE(fault([&](Manifest& m) { run(m).count = 3; }).find("cannot hold equal rows"),
            std::string::npos);
  EXPECT_NE(fault([&](Manifest& m) { run(m).count = 0; }), "");
  EXPECT_NE(fault([&](Manifest& m) { run(m).stride = 0; }), "");
  EXPECT_NE(fault([&](Manifest& m) { run(m).stride = kLargest; }), "");
  EXPECT_NE(fault([&](Manifest& m) { run(m).stride = 2; }).find("not among the stores"),
            std::string::npos);
  EXPECT_NE(fault([&](Manifest& m) { run(m).rank = kLargest; }), "");
  EXPECT_NE(fault([&](Manifest& m) { run(m).box.shape.set(0, 20); }), "");
  EXPECT_NE(fault([](Manifest& m) { m.stores.pop_back(); }).find("rank-00007.h5"),
            std::string::npos);
  EXPECT_NE(fault([](Manifest& m) { m.stores[1].index->bytes = 4901; }).find("lies beyond"),
            std::string::npos);
  EXPECT_NE(fault([](Manifest& m) { m.stores[1].file = "other.h5"; }).find("no rank's"),
            std::string::npos);
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
