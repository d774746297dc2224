#pragma once
// Models of every family in odd sizes, described twice: for the program and for the reference; and
// one tensor-parallel rank of such a model.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "model/model_reference.h"
#include "model/stage.h"
#include "support/store_contents.h"
#include "support/thread_ranks.h"

namespace trireme {

struct ModelCase {
  std::string name, keys;  ///< of config.json
  reference::Architecture model;
};
inline std::ostream& operator<<(std::ostream& out, const ModelCase& of) { return out << of.name; }
/// Every family; 6 divides heads and MLP columns, so that 1, 2 and 3 tensor-parallel ranks share
/// them out. `layers` of them.
std::vector<ModelCase> model_cases(std::int64_t layers);
/// A parameter of each name, numbers that bf16 holds: no bias is 0, no norm's weight 1.
reference::Params params_of(const reference::Architecture& model);
/// Those of its adapters, none 0.
reference::Params adapters_of(const ModelCase& of, const AdapterConfig& adapters);
/// Of rows of modules.
using RowLengths = std::map<std::pair<std::string, std::size_t>, double>;
/// `whole` with what those add to its weights. `lengths`: taken from there, or put there.
reference::Params merged(const ModelCase& of, const AdapterConfig& adapters,
                         reference::Params whole, const reference::Params& added,
                         RowLengths* lengths = nullptr);
/// `whole` with the values that codes in NF4 have where adapters' base stands in them.
reference::Params coded_in_nf4(const ModelCase& of, const AdapterConfig& adapters,
                               reference::Params whole);
/// `count` numbers that bf16 holds, other ones for each seed, about `scale` large.
reference::Values numbers(std::size_t count, std::uint64_t seed, double scale);

/// How a model is computed.
struct RankSetup {
  int ranks = 1;  ///< of the tensor axis
  bool sequence_parallel = false, shares_memory = false;
  DType compute = DType::kF32;
  Recompute recompute = Recompute::kNone;
  int threads = 1;
  bool reduces_each_micro_batch = false;  ///< ZeRO stage 2, of one rank
  std::string frozen = {};  ///< parameters whose names hold this are not trained; empty: none
  std::optional<AdapterConfig> adapters = {};
  bool nf4 = false;  ///< what these stand beside

  [[nodiscard]] std::string text() const;
};
/// 1, 2 and 3 ranks; more than one with and without sequence parallelism, and with memory that
/// ranks share and do not. One alone where a GPU's kernels are executed on the host, which takes
/// one thread.
std::vector<RankSetup> setups();

/// The elements of a tensor of the context's device.
std::vector<float> read(Context& context, const TensorView& view);
void write(Context& context, const TensorView& view, const reference::Values& values);

/// The context, parameters and rank of one rank.
struct RankModel {
  RankModel(const ModelCase& of, const std::vector<ChunkRange>& ranges, const RankSetup& setup,
            Communicator& channel, const StoreContents& contents = kTrainingStore);
  RankModel(const RankModel&) = delete;
  RankModel& operator=(const RankModel&) = delete;

  /// Every parameter that is here is its part of the whole one.
  void load(const reference::Params& whole);
  [[nodiscard]] TensorAxis axis() const;
  /// Of a stage of these chunks: `shape` with device, cut and recomputation filled in.
  [[nodiscard]] std::unique_ptr<Stage> stage(StageShape shape);
  /// The residual rows of `whole` [T, C] on this rank.
  [[nodiscard]] reference::Values residual_rows(const reference::Values& whole) const;

  const RankSetup setup;
  Communicator& channel;
  const AxisRank rank;
  ModelConfig config;
  ModelParams params;
  Context context;
  ParamStore store;
};

using RankGradients = std::map<ParamIndex, std::vector<float>>;
/// Of every parameter with a value, as the store has them.
RankGradients gradients_of(RankModel& rank);

/// Tensors that ranks hold parts of.
class Gathered {
 public:
  /// The rank's residual rows: all of them on every rank, or its shard.
  void add_stream(const std::string& name, AxisRank rank, const RankSetup& setup,
                  const std::vector<float>& rows);
  /// The gradients of the rank: what is partial is added, what every rank has whole must
  /// have equal bits.
  void add_gradients(RankModel& rank, const RankGradients& gradients);
  [[nodiscard]] const std::vector<float>& tensor(const std::string& name) const;
  [[nodiscard]] const std::map<std::string, std::vector<float>>& all() const { return whole_; }
  /// Every rank's own bytes, to compare bits.
  [[nodiscard]] const std::map<std::string, std::vector<float>>& parts() const { return parts_; }

 private:
  void add_parts(const RankModel& rank, const ParamMeta& param, const std::vector<float>& values);

  std::mutex mutex_;
  std::map<std::string, std::vector<float>> whole_, parts_;
};

/// || actual - expected || <= limit || expected ||, and no NaN.
void expect_near(const std::vector<float>& actual, const reference::Values& expected, double limit,
                 const std::string& what);

/// Memory behind the views of a micro-batch. `first` and `count` are sequences of `whole`.
struct TokensOfRank {
  TokensOfRank(const reference::Batch& whole, std::int64_t first, std::int64_t count,
               bool documents);
  std::vector<std::int32_t> ids, targets, positions, first_key;
  MicroBatch view;
};
/// Random ids and targets, of which some are not counted. With `documents` one begins in the middle
/// of each sequence.
reference::Batch random_batch(std::int64_t sequences, std::int64_t tokens, std::int64_t vocabulary,
                              bool documents);

}  // namespace trireme
