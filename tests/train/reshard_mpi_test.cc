// A checkpoint of any mesh goes on on any other: the state that was loaded has the bits of that
// which was saved, wherever its shards went; the next losses are those of one rank, and on the same
// mesh all bits are those of a run without a break. On four ranks each mesh to the next of a ring,
// for a tied model (and to itself) and for one whose shards are partly empty.
// TRIREME_RESHARD=ring: that on any ranks; =all: every ordered pair of the meshes that the ranks of
// the test allow, with every model.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "support/mpi_test.h"
#include "support/temporary_directory.h"
#include "train/mesh_run.h"

namespace trireme {
namespace {

constexpr int kBefore = 2, kAfter = 2;  // steps on either side of the checkpoint
constexpr std::int64_t kBatch = 16;
constexpr double kTolerance = 2e-6;  // of losses, as in the table of meshes

MeshCell with(int tensor, int context, int data, int zero_stage) {
  MeshCell cell;
  cell.tensor = tensor;
  cell.context = context;
  cell.data = data;
  cell.zero_stage = zero_stage;
  cell.sequence_parallel = tensor > 1;
  return cell;
}
MeshCell staged(MeshCell cell, int pipeline, const char* schedule) {
  cell.pipeline = pipeline;
  cell.schedule = schedule;
  cell.accumulation = 2 * pipeline;
  return cell;
}

/// Every axis, every stage of ZeRO, several schedules, alone and together. Layers do not divide by
/// stages, 61 rows of the vocabulary by no axis, and of one key head's two rows most ranks own
/// none.
std::vector<MeshCell> meshes() {
  MeshCell grouped = with(1, 1, 4, 2);
  grouped.hybrid = true;
  MeshCell fully_grouped = with(1, 2, 4, 3);
  fully_grouped.hybrid = true;
  return {
      with(1, 1, 1, 0),
      with(1, 1, 2, 1),
      with(2, 1, 1, 0),
      staged(with(1, 1, 1, 0), 2, "1f1b"),
      with(1, 2, 2, 3),
      grouped,
      staged(with(2, 1, 1, 0), 2, "zb-h1"),
      staged(with(1, 1, 2, 1), 2, "zb-v"),
      with(4, 1, 1, 0),
      with(1, 1, 8, 3),
      with(2, 2, 2, 2),
      fully_grouped,
      staged(with(2, 1, 2, 1), 2, "interleaved"),
      staged(with(1, 1, 2, 2), 4, "dualpipe-v"),
      staged(with(1, 2, 1, 0), 4, "gpipe"),
  };
}

/// Runs on the first ranks of the world; others get nothing and wait at the next barrier.
class Part {
 public:
  explicit Part(const MeshCell& cell)
      : inside_(test_world().rank() < cell.ranks()),
        group_(test_world().split(inside_ ? 0 : 1)),
        cell_(cell) {}
  [[nodiscard]] bool inside() const { return inside_; }
  MeshResult run(int steps, const MeshPassage& passage) {
    return run_mesh(test_launch(), *group_, cell_, kBatch, steps, passage);
  }

 private:
  bool inside_;
  std::unique_ptr<Communicator> group_;
  MeshCell cell_;
};

class Reshard : public testing::Test {
 protected:
  void SetUp() override {
    if (asked().empty() && test_world().size() != 4)
      GTEST_SKIP() << "for four ranks, or TRIREME_RESHARD";
    if (test_world().rank() == 0) own_ = std::make_unique<TemporaryDirectory>();
    directory_ = test_world().broadcast_text(own_ ? own_->path().string() : "", 0);
  }
  void TearDown() override { test_world().barrier(); }

  static std::string asked() {
    const char* value = std::getenv("TRIREME_RESHARD");
    return value == nullptr ? "" : value;
  }
  static bool whole() { return asked() == "all"; }

  struct Saved {
    MeshCell cell;
    std::filesystem::path folder;
    WholeTensors state;   ///< of the first ranks
    MeshResult unbroken;  ///< both halves without a break
  };

  Saved save_on(const MeshCell& cell, int number, bool also_unbroken) {
    Saved saved{cell, directory_ / fmt::format("{}-{}", name_of(cell.model), number), {}, {}};
    Part part(cell);
    if (part.inside()) {
      if (also_unbroken) saved.unbroken = part.run(kBefore + kAfter, {});
      MeshPassage passage;
      passage.save = saved.folder;
      saved.state = part.run(kBefore, passage).final;
      EXPECT_EQ(saved.state.fault, "") << cell.text();
    }
    test_world().barrier();
    return saved;
  }

  /// One pair; the first rank is in both meshes and compares.
  void go_on(const Saved& from, const Saved& to, const MeshResult& one) {
    Part part(to.cell);
    if (part.inside()) {
      MeshPassage passage;
      passage.load = from.folder / "step-00000002";
      passage.first_step = kBefore;
      const MeshResult found = part.run(kAfter, passage);
      if (test_world().rank() == 0) compare(from, to, found, one);
    }
    test_world().barrier();
  }

  void compare(const Saved& from, const Saved& to, const MeshResult& found, const MeshResult& one) {
    const std::string pair = from.cell.text() + "\n  -> " + to.cell.text();
    EXPECT_EQ(found.initial.fault, "") << pair;
    EXPECT_EQ(found.initial.tensors.size(), from.state.tensors.size()) << pair;
    for (const auto& [name, values] : from.state.tensors)
      EXPECT_TRUE(found.initial.tensors.at(name) == values) << pair << ": " << name;
    for (int step = 0; step < kAfter; ++step) {
      const double expected = one.losses.at(static_cast<std::size_t>(kBefore + step));
      const double distance =
          std::abs(found.losses.at(static_cast<std::size_t>(step)) / expected - 1);
      worst_ = std::max(worst_, distance);
      EXPECT_LE(distance, kTolerance) << pair << ": loss " << step;
    }
    if (&from != &to) return;
    EXPECT_TRUE(found.final.tensors == to.unbroken.final.tensors) << pair << ": not bit for bit";
    EXPECT_TRUE(
        std::equal(found.losses.begin(), found.losses.end(), to.unbroken.losses.begin() + kBefore))
        << pair << ": losses not bit for bit";
  }

  /// All ordered pairs of the meshes of this many ranks at most, or a ring through them.
  void run(MeshModel model, bool in_short_too_itself = false) {
    const bool all_pairs = whole(), itself = all_pairs || in_short_too_itself;
    std::vector<Saved> saved;
    for (MeshCell cell : meshes()) {
      if (cell.ranks() > test_world().size()) continue;
      cell.model = model;
      cell.layers = test_world().size() >= 8 ? 9 : 5;
      saved.push_back(save_on(cell, static_cast<int>(saved.size()), itself));
    }
    int pairs = 0;
    MeshResult one;
    if (test_world().rank() == 0) {
      const std::unique_ptr<Communicator> self = make_self_communicator();
      one = run_mesh(test_launch(), *self, saved.front().cell, kBatch, kBefore + kAfter);
    }
    for (std::size_t i = 0; i < saved.size(); ++i) {
      for (std::size_t j = 0; j < saved.size(); ++j) {
        if (i == j ? !itself : !all_pairs && j != (i + 1) % saved.size()) continue;
        go_on(saved[i], saved[j], one);
        ++pairs;
      }
    }
    if (test_world().rank() == 0) {
      fmt::print("{}: {} ordered pairs of {} meshes, losses within {:.1e} of one rank\n",
                 name_of(model), pairs, saved.size(), worst_);
    }
  }

  std::unique_ptr<TemporaryDirectory> own_;
  std::filesystem::path directory_;
  double worst_ = 0;
};

TEST_F(Reshard, tied_with_biases) { run(MeshModel::kOlmo3, true); }
TEST_F(Reshard, one_key_head_whose_rows_most_ranks_lack) { run(MeshModel::kOneKey); }

TEST_F(Reshard, other_models) {
  if (!whole()) GTEST_SKIP() << "TRIREME_RESHARD=all";
  for (const MeshModel model : {MeshModel::kLlama, MeshModel::kGemma3, MeshModel::kGpt2})
    run(model);
}

}  // namespace
}  // namespace trireme
