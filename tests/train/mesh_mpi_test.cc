// Every mesh trains as one rank does. The cells that are run are a covering part of the table, all
// of it where TRIREME_MESH_TABLE is "all".

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>

#include "support/mpi_test.h"
#include "train/mesh_cells.h"
#include "train/mesh_run.h"

namespace trireme {
namespace {

constexpr int kFailuresMost = 3;  // the others would say the same

/// How far a cell may be from one rank. The moments of five steps have gone through five updates,
/// which multiply what the first gradients differ by: twice as far.
struct Tolerance {
  double losses = 2e-6, norms = 2e-6, gradients = 5e-6, moments = 1e-5;
  int steps = 5;
  double first_loss = losses, blocks = moments;
};

/// Runs of one rank, made when they are first asked for. Every rank makes the same by itself.
const MeshResult& run_of_one_rank(const MeshCell& cell, int steps) {
  static std::map<std::string, MeshResult> results;
  const MeshCell alone = cell.alone();
  const std::int64_t batch = cell.global_batch();
  const std::string key = fmt::format("{} {} {}", alone.text(), batch, steps);
  const auto found = results.find(key);
  if (found != results.end()) return found->second;
  const std::unique_ptr<Communicator> self = make_self_communicator();
  return results.emplace(key, run_mesh(test_launch(), *self, alone, batch, steps)).first->second;
}

/// What is wrong with a cell; "" where nothing is.
std::string fault_of(const MeshResult& found, const MeshResult& one, const MeshDistance& distance,
                     const Tolerance& tolerance) {
  std::string fault;
  const auto add = [&](const std::string& text) { fault += (fault.empty() ? "" : "; ") + text; };
  for (const WholeTensors* whole : {&found.initial, &found.gradients, &found.final}) {
    if (!whole->fault.empty()) add(whole->fault);
  }
  for (const auto& [name, values] : one.initial.tensors) {
    if (found.initial.tensors.at(name) != values) add("initial " + name);
  }
  const auto bound = [&](const char* what, double value, double limit, const std::string& where) {
    if (!(value <= limit)) add(fmt::format("{} {:.1e} {}", what, value, where));
  };
  bound("losses", distance.losses, tolerance.losses, "");
  bound("first loss", std::abs(found.losses[0] / one.losses[0] - 1), tolerance.first_loss, "");
  bound("norms", distance.norms, tolerance.norms, "");
  bound("norms of blocks", distance.blocks, tolerance.blocks, "");
  bound("gradient", distance.gradients, tolerance.gradients, distance.worst_gradient);
  bound("moment", distance.moments, tolerance.moments, distance.worst_moment);
  return fault;
}

/// Runs cells on all ranks of a group, compares each with one rank and with those that promise the
/// same bits, and keeps the worst figures.
class Table {
 public:
  explicit Table(const Tolerance& tolerance = {}, Communicator& world = test_world())
      : tolerance_(tolerance), world_(world) {}

  /// False after enough faults; the same on every rank.
  bool run(const MeshCell& cell) {
    const MeshResult& one = run_of_one_rank(cell, tolerance_.steps);
    const MeshResult found =
        run_mesh(test_launch(), world_, cell, cell.global_batch(), tolerance_.steps);
    const MeshDistance distance = distance_of(found, one);
    add(name_of(cell.model), distance);
    const std::string fault = fault_of(found, one, distance, tolerance_);
    EXPECT_EQ(fault, "") << cell.text();
    std::int64_t failed = fault.empty() && same_bits(cell, found) ? 0 : 1;
    world_.maximum(std::span(&failed, 1));
    failures_ += static_cast<int>(failed);
    return failures_ < kFailuresMost;
  }
  void run(const std::vector<MeshCell>& cells) {
    for (const MeshCell& cell : cells) {
      if (!run(cell)) return;
    }
  }
  void print() const {
    if (world_.rank() != 0) return;
    for (const auto& [name, worst] : worst_) {
      fmt::print(
          "{} ranks, {}: {} cells, losses {:.1e}, norms {:.1e}, gradients {:.1e}, moments {:.1e}\n",
          world_.size(), name, worst.cells, worst.distance.losses, worst.distance.norms,
          worst.distance.gradients, worst.distance.moments);
    }
    fmt::print("{} ranks: {} cells had the bits of another\n", world_.size(), same_bits_);
  }

 private:
  struct Worst {
    int cells = 0;
    MeshDistance distance;
  };
  struct First {
    std::string cell, bits;
  };

  void add(const std::string& model, const MeshDistance& distance) {
    Worst& worst = worst_[model];
    ++worst.cells;
    worst.distance.losses = std::max(worst.distance.losses, distance.losses);
    worst.distance.norms = std::max(worst.distance.norms, distance.norms);
    worst.distance.gradients = std::max(worst.distance.gradients, distance.gradients);
    worst.distance.moments = std::max(worst.distance.moments, distance.moments);
  }

  bool same_bits(const MeshCell& cell, const MeshResult& found) {
    const bool all = compare_bits(cell.bit_class(), cell, bits_of(found));
    if (cell.context_method == ContextMethod::kUlysses) return all;
    MeshCell ring = cell;
    ring.context_method = ContextMethod::kRing;
    const bool forward = compare_bits("first loss of " + ring.bit_class(), cell,
                                      fmt::format("{:a}", found.losses.front()));
    return all && forward;
  }
  bool compare_bits(const std::string& key, const MeshCell& cell, const std::string& bits) {
    const auto [at, first] = firsts_.try_emplace(key, First{cell.text(), bits});
    if (first) return true;
    ++same_bits_;
    EXPECT_EQ(bits, at->second.bits) << cell.text() << "\n  and " << at->second.cell;
    return bits == at->second.bits;
  }

  Tolerance tolerance_;
  Communicator& world_;
  int failures_ = 0, same_bits_ = 0;
  std::map<std::string, Worst> worst_;
  std::map<std::string, First> firsts_;
};

bool whole_table() {
  const char* value = std::getenv("TRIREME_MESH_TABLE");
  return value != nullptr && std::string_view(value) == "all";
}

TEST(Mesh, every_cell_trains_as_one_rank_does) {
  const int ranks = test_world().size();
  const std::vector<MeshCell> cells =
      whole_table() ? legal_cells(ranks, Combinations::kOnceEach) : covering_cells(ranks);
  EXPECT_GE(cells.size(), 20U) << "the rules refuse almost all";
  Table table;
  table.run(cells);
  table.print();
}

/// Stages of ZeRO and what is computed again change no bits, within the classes that add in the
/// same order; nor does a second run.
TEST(Mesh, zero_and_recompute_leave_the_bits_alone) {
  Tolerance tolerance;
  tolerance.steps = 2;
  Table table(tolerance);
  std::vector<MeshCell> cells;
  int turn = 0;
  for (MeshCell mesh : meshes_in_turn(test_world().size())) {
    mesh.accumulation = 1 + turn++ % 2;
    const auto variants = bit_cells(mesh);
    cells.insert(cells.end(), variants.begin(), variants.end());
  }
  table.run(cells);
  table.print();
}

TEST(Mesh, bf16_stays_near_one_rank) {
  Table table({2e-3, 1e-2, 0.1, 0.1});
  std::vector<MeshCell> cells = meshes_in_turn(test_world().size());
  for (std::size_t i = 0; i < cells.size(); ++i) {
    cells[i].bf16 = true;
    cells[i].zero_stage = static_cast<int>(i % 4);
    cells[i].documents = i % 3 == 0;
  }
  table.run(cells);
  table.print();
}

TEST(Mesh, adapters_train_as_on_one_rank) {
  Tolerance tolerance;
  tolerance.steps = 3;
  Table table(tolerance);
  table.run(adapter_cells(test_world().size()));
  table.print();
}

/// The sign of what is next to 0 hangs on rounding: with Lion ranks that add in one order have
/// equal bits, others are near.
TEST(Mesh, groups_of_parameters_and_each_optimizer_train_as_on_one_rank) {
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kLion,
                                   OptimizerKind::kScheduleFree, OptimizerKind::kAdafactor}) {
    Table table(kind == OptimizerKind::kLion ? Tolerance{2e-3, 1e-2, 0.1, 0.1, 3}
                                             : Tolerance{.steps = 3});
    table.run(group_cells(test_world().size(), kind));
    table.print();
  }
}

/// A code may be the next one where ranks add in another order.
TEST(Mesh, moments_in_8_bits_train_as_on_one_rank) {
  Table table(Tolerance{.moments = 1e-2, .steps = 3});
  table.run(coded_cells(test_world().size()));
  table.print();
}

TEST(Mesh, matrices_that_are_updated_as_wholes_train_as_on_one_rank) {
  std::vector<MeshCell> cells = muon_cells(test_world().size());
  const auto rounded = std::stable_partition(cells.begin(), cells.end(),
                                             [](const MeshCell& cell) { return !cell.bf16; });
  Table table({.steps = 3});
  table.run({cells.begin(), rounded});
  table.print();
  // Directions in which a gradient is next to nothing hang on rounding, and become as long as
  // others.
  Table of_rounded({2e-3, 1e-2, 0.1, 0.1, 3});
  of_rounded.run({rounded, cells.end()});
  of_rounded.print();
}

/// Every axis, every stage of ZeRO and a schedule with B and W apart; a vocabulary that no number
/// of ranks divides, targets that do not count.
TEST(Mesh, a_z_loss_is_that_of_one_rank) {
  const int ranks = test_world().size();
  MeshCell tensor, sequence, context, pipeline, data;
  tensor.tensor = sequence.tensor = context.context = pipeline.pipeline = data.data = ranks;
  if (ranks == 3) tensor.model = sequence.model = MeshModel::kOneKey;
  sequence.sequence_parallel = true;
  pipeline.schedule = "zb-h1";
  pipeline.layers = ranks;
  data.accumulation = pipeline.accumulation = 2;
  std::vector<MeshCell> cells = {tensor, sequence, context};
  if (ranks > 1) cells.push_back(pipeline);
  for (; data.zero_stage < 4; ++data.zero_stage) cells.push_back(data);
  for (MeshCell& cell : cells) {
    cell.z_loss = 0.05;
    cell.documents = true;
  }
  Tolerance tolerance;
  tolerance.steps = 3;
  Table table(tolerance);
  table.run(cells);
  table.print();
  const MeshResult& with = run_of_one_rank(cells.front(), 3);
  data = cells.front();
  data.z_loss = 0;
  const MeshResult& without = run_of_one_rank(data, 3);
  EXPECT_EQ(with.losses[0], without.losses[0]) << "the loss is the cross-entropy alone";
  EXPECT_NE(with.norms[0], without.norms[0]);
}

TEST(Mesh, adapters_of_the_head_train_as_on_one_rank) {
  Tolerance tolerance;
  tolerance.steps = 3;
  Table table(tolerance);
  table.run(head_adapter_cells(test_world().size()));
  table.print();
}

/// Equal losses and gradients where equal numbers are dropped, and no others.
TEST(Mesh, dropout_is_that_of_one_rank) {
  const std::vector<MeshCell> cells = dropout_cells(test_world().size());
  Tolerance tolerance;
  tolerance.steps = 2;
  Table table(tolerance);
  table.run(cells);
  table.print();
  MeshCell plain = cells.front();
  const MeshResult& with = run_of_one_rank(plain, 2);
  plain.dropout = false;
  EXPECT_GT(std::abs(with.losses[0] - run_of_one_rank(plain, 2).losses[0]), 1e-3);
}

TEST(Mesh, adapters_of_experts_train_as_on_one_rank) {
  Tolerance tolerance;
  tolerance.steps = 3;
  Table table(tolerance);
  table.run(expert_adapter_cells(test_world().size()));
  table.print();
}

/// Gradients are as far off as the two bits of e5m2 are, where a sum rounds otherwise or a rank's
/// own tokens give another scale. The first loss and the bits of other cells are what holds the
/// table.
TEST(Mesh, fp8_stays_near_one_rank) {
  Table table({2e-2, 0.1, 0.6, 0.6, 3, 1e-2});
  table.run(fp8_cells(test_world().size()));
  table.print();
}

TEST(Mesh, fp8_experts_and_latents_stay_near_one_rank) {
  Table table({2e-2, 0.1, 0.6, 0.6, 3, 1e-2});
  table.run(fp8_expert_cells(test_world().size()));
  table.print();
}

/// In the MPI library's order sums agree to rounding, and with those of a second run in all bits.
TEST(Mesh, sums_of_the_library_stay_within_rounding_of_one_rank) {
  Tolerance tolerance;
  tolerance.steps = 2;
  Table table(tolerance);
  std::vector<MeshCell> cells = meshes_in_turn(test_world().size());
  for (std::size_t i = 0; i < cells.size(); ++i) {
    cells[i].library_sums = true;
    cells[i].zero_stage = static_cast<int>(i % 4);
    cells[i].accumulation = 1 + static_cast<int>(i / 2 % 2);
    if (!table.run(cells[i]) || !table.run(cells[i])) break;
  }
  table.print();
}

/// Ranks of a group are not those of the launch.
TEST(Mesh, a_part_of_the_ranks_trains_alike) {
  const int ranks = test_world().size();
  if (ranks < 3) GTEST_SKIP() << "no part is a mesh";
  const int part = test_world().rank() < ranks / 2 ? 0 : 1;
  const std::unique_ptr<Communicator> group = test_world().split(part);
  Table table({}, *group);
  MeshCell cell;
  cell.model = part == 0 ? MeshModel::kLlama : MeshModel::kGpt2;
  cell.data = group->size();
  cell.zero_stage = 2 + part;
  table.run(cell);
}

/// Few enough for CUDA's kernels executed on the host.
TEST(Mesh, a_few_cells_in_fp8) {
  if (test_world().size() != 2) GTEST_SKIP() << "for two ranks";
  Table table({5e-3, 5e-2, 0.5, 0.5, 1});
  MeshCell tensor, zero, whole;
  tensor.tensor = 2;
  tensor.sequence_parallel = true;
  whole.data = zero.data = 2;
  zero.zero_stage = 3;
  int turn = 0;
  for (MeshCell* cell : {&tensor, &zero, &whole}) {
    cell->model = MeshModel::kSixteens;
    cell->layers = 1;
    cell->fp8 = Fp8Precision{turn++ == 0 ? Fp8Recipe::kBlock : Fp8Recipe::kTensor};
  }
  MeshCell dropped = whole;
  dropped.model = MeshModel::kGpt2Sixteens;
  dropped.dropout = true;
  table.run({tensor, zero, whole, dropped});
  table.print();
}

TEST(Mesh, a_few_cells) {
  if (test_world().size() != 2) GTEST_SKIP() << "for two ranks";
  Tolerance tolerance;
  tolerance.steps = 2;
  Table table(tolerance);
  MeshCell tensor, ring, ulysses, zero;
  tensor.model = MeshModel::kOlmo3;
  tensor.tensor = 2;
  tensor.sequence_parallel = true;
  tensor.accumulation = 2;
  ring.model = MeshModel::kGemma3;
  ring.context = 2;
  ring.documents = true;
  ring.recompute = Recompute::kSelective;
  ulysses.model = MeshModel::kOneKey;
  ulysses.context = 2;
  ulysses.context_method = ContextMethod::kUlysses;
  ulysses.documents = true;
  ulysses.zero_stage = 1;
  zero.model = MeshModel::kGpt2;
  zero.data = 2;
  zero.zero_stage = 3;
  zero.accumulation = 2;
  zero.recompute = Recompute::kFull;
  MeshCell dropped = zero, dropped_heads = ulysses;
  dropped.dropout = dropped_heads.dropout = true;
  table.run({tensor, ring, ulysses, zero, dropped, dropped_heads});
  table.print();
}

TEST(Mesh, a_few_cells_of_experts) {
  if (test_world().size() != 2) GTEST_SKIP() << "for two ranks";
  Tolerance tolerance;
  tolerance.steps = 2;
  Table table(tolerance);
  MeshCell data, tensor, columns;
  for (MeshCell* cell : {&data, &tensor, &columns}) {
    cell->model = MeshModel::kQwen2Moe;
    cell->expert = 2;
  }
  data.data = 2;
  data.zero_stage = 3;
  data.recompute = Recompute::kFull;
  tensor.tensor = 2;
  tensor.sequence_parallel = true;
  tensor.accumulation = 2;
  tensor.dispatch = DispatchMethod::kAllGather;
  columns.model = MeshModel::kMixtral;
  columns.context = 2;
  columns.expert = 1;
  columns.expert_tensor = 2;
  columns.documents = true;
  table.run({data, tensor, columns});
  table.print();
}

TEST(Mesh, experts_train_as_on_one_rank) {
  Table table;
  table.run(expert_cells(test_world().size()));
  table.print();
}

TEST(Mesh, latents_train_as_on_one_rank) {
  Table table;
  table.run(latent_cells(test_world().size()));
  table.print();
}

TEST(Mesh, sinks_and_biases_of_experts_train_as_on_one_rank) {
  Tolerance tolerance;
  tolerance.steps = 2;  // later rounding decides on which side of a clamp a value is
  Table table(tolerance);
  table.run(sink_cells(test_world().size()));
  table.print();
}

TEST(Mesh, experts_train_in_a_pipeline_as_on_one_rank) {
  const int ranks = test_world().size();
  if (ranks % 2 != 0) return;
  Table table;
  for (const auto& [model, schedule] :
       {std::pair{MeshModel::kQwen2Moe, "1f1b"}, std::pair{MeshModel::kQwen2Moe, "zb-h1"},
        std::pair{MeshModel::kGptOss, "zb-h1"}}) {
    MeshCell cell;
    cell.model = model;
    cell.pipeline = 2;
    cell.schedule = schedule;
    cell.data = cell.expert = ranks / 2;
    cell.accumulation = 3;
    cell.zero_stage = 2;
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      cell.recompute = recompute;
      if (!table.run(cell)) return;
    }
  }
  // Forward and backward take turns where activations are kept, and gradients are whole.
  MeshCell cell;
  cell.model = MeshModel::kMixtral;
  cell.layers = 5;
  cell.pipeline = 2;
  cell.schedule = "dualpipe-v";
  cell.data = cell.expert = ranks / 2;
  cell.accumulation = 5;
  for (const int stage : {0, 1, 3}) {
    cell.zero_stage = stage;
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective}) {
      cell.recompute = recompute;
      if (!table.run(cell)) return;
    }
  }
}

}  // namespace
}  // namespace trireme
