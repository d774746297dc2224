// Checkpoints damaged at random in every way that disks, copies and people damage files: what loads
// is what was saved, or nothing loads.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "base/file.h"
#include "base/hash.h"
#include "base/random.h"
#include "checkpoint/async_writer.h"
#include "checkpoint/reader.h"
#include "manifest_kinds.h"
#include "support/save_checkpoint.h"
#include "support/temporary_directory.h"
#include "test_state.h"

namespace trireme {
namespace {

/// Random numbers of one trial.
class Draw {
 public:
  explicit Draw(std::uint64_t trial) : key_(stream_key(trial, "damage")) {}
  std::size_t below(std::size_t bound) {
    return uniform_below(key_, std::max<std::size_t>(1, bound), &counter_);
  }

 private:
  std::uint64_t key_, counter_ = 0;
};

void flip_bit(std::string& bytes, std::size_t at, Draw& draw) {
  bytes[at] = static_cast<char>(bytes[at] ^ (1 << draw.below(8)));
}

void overwrite(std::string& bytes, std::size_t at, std::size_t count, Draw* draw) {
  for (std::size_t i = at; i < std::min(at + count, bytes.size()); ++i) {
    bytes[i] = draw == nullptr ? '\0' : static_cast<char>(draw->below(256));
  }
}

/// With manifests that list the shards, and with split ones.
class Damage : public testing::TestWithParam<ManifestKind> {
 protected:
  void SetUp() override {
    add_odd_tensors(tensors_);
    for (const int step : {1, 2}) {
      tensors_.fill(static_cast<std::uint64_t>(step));
      tensors_.state().scalars["adam_step"] = step;
      SaveRequest request = request_for(directory_.path(), step, tensors_.state());
      request.shard_bytes_max = 4000;
      request.listed_shards_max = listed_shards_max(GetParam());
      ASSERT_EQ(save_checkpoint(request, *world_).error, "");
    }
    file_ = read_file(folder_ / "rank-00000.h5");
    manifest_ = read_file(folder_ / "manifest.json");
  }
  void write(const char* name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary | std::ios::trunc) << bytes;
  }

  /// Damages step 2 in one way; says which.
  std::string damage(Draw& draw) {
    std::string file = file_, manifest = manifest_;
    const std::size_t kind = draw.below(12);
    switch (kind) {
      case 0:
        flip_bit(file, draw.below(file.size()), draw);
        break;
      case 1:
        flip_bit(file, draw.below(2048), draw);
        break;
      case 2:
        overwrite(file, draw.below(file.size() / 4096) * 4096, 4096, nullptr);
        break;
      case 3:
        overwrite(file, draw.below(file.size()), 64, &draw);
        break;
      case 4:
        file.resize(draw.below(file.size()));
        break;
      case 5:
        file += std::string(1 + draw.below(9000), 'x');
        break;
      case 6:
        file = read_file(directory_ / "step-00000001/rank-00000.h5");
        break;
      case 7:
        manifest = read_file(directory_ / "step-00000001/manifest.json");
        break;
      case 8:
        flip_bit(manifest, draw.below(manifest.size()), draw);
        break;
      case 9:
        manifest.resize(draw.below(manifest.size()));
        break;
      case 10: {
        std::size_t at = draw.below(manifest.size());
        while (manifest[at] < '0' || manifest[at] > '9') at = (at + 1) % manifest.size();
        manifest[at] = static_cast<char>('0' + draw.below(10));
        break;
      }
      default:
        manifest.erase(draw.below(manifest.size()), 1 + draw.below(300));
    }
    write("rank-00000.h5", file);
    write("manifest.json", manifest);
    return fmt::format("kind {}", kind);
  }

  TemporaryDirectory directory_;
  std::filesystem::path folder_ = directory_ / "step-00000002";
  std::unique_ptr<Communicator> world_ = make_self_communicator();
  TestState tensors_;
  std::string file_, manifest_;
};

/// So many faults, more of them where TRIREME_DAMAGE_TRIALS says so.
std::uint64_t damage_trials() {
  const char* value = std::getenv("TRIREME_DAMAGE_TRIALS");
  return value == nullptr ? 300 : std::strtoull(value, nullptr, 10);
}

TEST_P(Damage, hundreds_of_random_faults_and_none_loads_wrong) {
  std::uint64_t refused = 0, wrong = 0;
  const std::uint64_t trials = damage_trials();
  for (std::uint64_t trial = 0; trial < trials; ++trial) {
    Draw draw(trial);
    const std::string what = damage(draw);
    tensors_.clear();
    try {
      const Manifest manifest = load_state(folder_, tensors_.state(), *world_);
      wrong += tensors_.first_difference(2).empty() ? 0 : 1;
      EXPECT_EQ(tensors_.first_difference(2), "") << "trial " << trial << ": " << what;
      EXPECT_EQ(tensors_.state().scalars.dump(), R"({"adam_step":2})")
          << "trial " << trial << ": " << what;
      EXPECT_EQ(manifest.consumed_samples, 16) << "trial " << trial << ": " << what;
    } catch (const Error& error) {
      ++refused;
      EXPECT_EQ(error.code(), ExitCode::kData)
          << "trial " << trial << ": " << what << ": " << error.what();
      EXPECT_NE(std::string(error.what()).find(folder_.string()), std::string::npos)
          << error.what();
    }
  }
  EXPECT_GT(refused, trials * 2 / 3) << "the rest hit bytes that hold nothing";
  std::printf("damaged checkpoints: %llu trials, %llu refused, %llu loaded wrong\n",
              static_cast<unsigned long long>(trials), static_cast<unsigned long long>(refused),
              static_cast<unsigned long long>(wrong));
}

TEST_P(Damage, verify_names_file_and_tensor_of_a_flipped_bit) {
  const Manifest manifest = read_manifest(folder_);
  // The one place where the bytes of the norm's weights stand.
  std::string needle;
  for (const StateTensor& tensor : tensors_.state().tensors) {
    if (tensor.name == "parameters/norm.weight")
      needle.assign(reinterpret_cast<const char*>(tensor.data), 96);
  }
  std::string file = file_;
  const std::size_t at = file.find(needle);
  ASSERT_NE(at, std::string::npos);
  file[at + 50] = static_cast<char>(file[at + 50] ^ 4);
  write("rank-00000.h5", file);
  const auto faults = verify_checkpoint(folder_);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].file, "rank-00000.h5");
  EXPECT_EQ(faults[0].tensor, "parameters/norm.weight");
  EXPECT_NE(faults[0].text.find("parameters/norm.weight"), std::string::npos);
  EXPECT_EQ(find_newest_valid(directory_.path(), *world_).path, directory_ / "step-00000001");
}

TEST_P(Damage, a_manifest_is_refused_for_each_of_its_lies_by_name) {
  if (GetParam() == ManifestKind::kSplit) GTEST_SKIP() << "SplitManifest has them";
  const struct {
    const char *from, *to, *message;
  } cases[] = {
      {R"("format_version": 2)", R"("format_version": 1)", "format_version is 1"},
      {R"("step": 2)", R"("step": 2.0)", "step: must be an integer"},
      {R"("step": 2)", R"("step": -2)", "step: must not be negative"},
      {R"("step": 2)", R"("steps": 2)", "step is missing"},
      {R"("step": 2)", R"("step": 2, "step": 2)", "stands twice"},
      {R"("consumed_samples": 16)", R"("consumed_samples": 17)", "does not match its own hash"},
      {R"("adam_step": 2)", R"("adam_step": 1)", "does not match its own hash"},
      {R"("file": "rank-00000.h5")", R"("file": "../rank-00000.h5")", "is not the name of a file"},
      {R"("file": "rank-00000.h5")", R"("file": "/etc/passwd")", "is not the name of a file"},
      {R"("file": "rank-00000.h5")", R"("file": "..")", "is not the name of a file"},
      {R"("dataset": "optimizer/count/at-0")", R"("dataset": "optimizer/../at-0")",
       "is not the path of a dataset"},
      {R"("dataset": "optimizer/count/at-0")", R"("dataset": "/at-0")",
       "is not the path of a dataset"},
      {R"("dtype": "int32")", R"("dtype": "int33")", "tensors.optimizer/count.dtype"},
      {R"("shape": [1])", R"("shape": [2])", "shards hold 1 of 2 elements"},
      {R"("shape": [1])", R"("shape": [1, 1])", "lies outside of the shape"},
      {R"("shape": [307, 24])", R"("shape": [307, 4611686018427387904])", "is too large"},
      {R"("shape": [307, 24])", R"("shape": [307, 24, 1, 1, 1, 1])", "has 6 dims"},
      {R"("offset": [41, 0])", R"("offset": [40, 0])", "overlap"},
      {R"("offset": [41, 0])", R"("offset": [9223372036854775807, 0])",
       "lies outside of the shape"},
      {R"("tensors": {)", R"("tensors": [], "x": {)", "tensors: must be an object"},
      {R"("stores": [)", R"("stores": [], "x": [)", "rank-00000.h5 is not among the stores"},
  };
  for (const auto& [from, to, message] : cases) {
    std::string changed = manifest_;
    const std::size_t at = changed.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    changed.replace(at, std::string_view(from).size(), to);
    write("manifest.json", changed);
    try {
      load_state(folder_, tensors_.state(), *world_);
      ADD_FAILURE() << "accepted " << to;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      const std::string text = error.what();
      EXPECT_NE(text.find(message), std::string::npos) << to << ": " << text;
      EXPECT_NE(text.find("manifest.json"), std::string::npos) << text;
    }
  }
}

/// As another tool might save bytes that are equal: each tensor gets its own.
TEST_P(Damage, tensors_that_share_their_bytes_are_read_apart) {
  if (GetParam() == ManifestKind::kSplit) GTEST_SKIP() << "its indices are this program's";
  Json json = parse_json(manifest_, "m");
  Json& tensors = *json.find("tensors");
  Json norm = *tensors.find("parameters/norm.weight");
  tensors["parameters/twin.weight"] = norm;
  norm["shape"] = parse_json("[2, 12]", "");
  Json& shard = norm.find("shards")->as_array()[0];
  shard["offset"] = parse_json("[0, 0]", "");
  shard["shape"] = parse_json("[2, 12]", "");
  tensors["parameters/folded.weight"] = norm;
  json.erase("manifest_xxh3_128");
  write("manifest.json", json.dump());
  TestState read;
  read.add_whole("parameters/norm.weight", Shape{24});
  read.add_whole("parameters/twin.weight", Shape{24});
  read.add_whole("parameters/folded.weight", Shape{2, 12});
  for (const StateTensor& tensor : tensors_.state().tensors) {
    if (tensor.name.starts_with("parameters/") && tensor.name != "parameters/norm.weight")
      read.add({tensor.name, tensor.dtype, tensor.global_shape, tensor.box});
  }
  read.clear();
  load_state(folder_, read.state(), *world_, LoadScope::kParameters);
  const auto bytes_of = [&](std::size_t i) {
    return std::string(reinterpret_cast<const char*>(read.state().tensors[i].data), 96);
  };
  EXPECT_NE(bytes_of(0), std::string(96, '\0'));
  EXPECT_EQ(bytes_of(0), bytes_of(1));
  EXPECT_EQ(bytes_of(0), bytes_of(2));
}

TEST_P(Damage, verify_finds_a_change_of_any_byte_of_a_file) {
  Draw draw(77);
  for (std::size_t trial = 0; trial < 400; ++trial) {
    const std::size_t at = trial < 200 ? trial : draw.below(file_.size());
    std::string file = file_;
    flip_bit(file, at, draw);
    write("rank-00000.h5", file);
    const auto faults = verify_checkpoint(folder_);
    ASSERT_EQ(faults.size(), 1u) << "byte " << at;
    EXPECT_EQ(faults[0].file, "rank-00000.h5");
    EXPECT_NE(faults[0].text.find("rank-00000.h5"), std::string::npos) << faults[0].text;
  }
  write("rank-00000.h5", file_ + "x");
  ASSERT_EQ(verify_checkpoint(folder_).size(), 1u);
  write("rank-00000.h5", file_);
  EXPECT_TRUE(verify_checkpoint(folder_).empty());
}

TEST_P(Damage, what_stands_between_the_tensors_is_never_parsed) {
  const Manifest manifest = read_manifest(folder_);
  std::string file(file_.size(), '\xee');
  const auto keep = [&](std::int64_t begin, std::int64_t bytes) {
    const auto at = static_cast<std::size_t>(begin), size = static_cast<std::size_t>(bytes);
    file.replace(at, size, file_.substr(at, size));
  };
  const ManifestStore& store = manifest.stores.at(0);
  if (store.index) keep(store.index->byte_offset, store.index->bytes);
  for (const StoredShard& stored : ShardLists(folder_, manifest).of_store(store))
    keep(stored.shard.byte_offset, stored.bytes());
  write("rank-00000.h5", file);
  tensors_.clear();
  load_state(folder_, tensors_.state(), *world_, LoadScope::kParameters);
  EXPECT_EQ(tensors_.first_difference(2), "");
  EXPECT_THROW(load_state(folder_, tensors_.state(), *world_), DataError) << "what resumes a run";
  const auto faults = verify_checkpoint(folder_);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].text.find("between its tensors"), std::string::npos) << faults[0].text;
}

TEST_P(Damage, an_index_of_another_save_is_refused) {
  if (GetParam() == ManifestKind::kListed) GTEST_SKIP() << "it has no index";
  Json json = parse_json(manifest_, "m");
  Json& index = *json.find("stores")->as_array()[0].find("index");
  const auto at = static_cast<std::size_t>(index.find("byte_offset")->as_integer());
  const auto bytes = static_cast<std::size_t>(index.find("bytes")->as_integer());
  const auto fault = [&](const std::string& from, const std::string& to) {
    std::string text = file_.substr(at, bytes);
    EXPECT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
    write("rank-00000.h5", std::string(file_).replace(at, bytes, text));
    index["xxh3_128"] = xxh3_128_hex(text);
    json.erase("manifest_xxh3_128");
    write("manifest.json", json.dump());
    try {
      load_state(folder_, tensors_.state(), *world_);
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string norm = R"("parameters/norm.weight":{"dtype":"fp32","shape":[24],)";
  const auto expect_fault = [&](const std::string& to, const std::string& message) {
    const std::string text = fault(norm, to);
    EXPECT_NE(text.find(message), std::string::npos) << text;
    EXPECT_NE(text.find("rank-00000.h5"), std::string::npos) << text;
  };
  expect_fault(R"("parameters/worm.weight":{"dtype":"fp32","shape":[24],)", "the manifest has not");
  expect_fault(R"("parameters/norm.weight":{"dtype":"fp32","shape":[25],)", "the manifest has not");
  EXPECT_NE(fault(R"("offset":[0],"shape":[24])", R"("offset":[1],"shape":[23])")
                .find("does not name the shard"),
            std::string::npos);
  EXPECT_NE(
      fault(R"("file":"rank-00000.h5")", R"("file":"rank-00001.h5")").find("beyond this file"),
      std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Manifests, Damage, both_kinds(), name_of_kind);

}  // namespace
}  // namespace trireme
