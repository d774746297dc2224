#pragma once
// The table of meshes: every setting that splits a model or its batch, as one line each, and which
// lines are legal. Pure; what a line computes is in mesh_run.h.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"

namespace trireme {

/// Models of small odd sizes: a vocabulary of 61 (but where it says so), sequences of 24 tokens.
enum class MeshModel : std::uint8_t {
  kLlama,   ///< 2 KV heads for 4
  kOneKey,  ///< llama with one key head for 12, and a vocabulary of 1,301: far more than a step's
            ///< tokens, so that the embedding's gradient is held as rows
  kOlmo3,   ///< norms behind branches, of all heads' q and k; biases of attention; tied; 3 layers,
            ///< the outer ones with a window
  kGemma3,  ///< norms before and behind, of each head's q and k; heads wider than hidden / heads; a
            ///< window and a RoPE of its own in the first layer
  kGpt2,    ///< q, k and v in one matrix; biases everywhere; learned positions; tied
  // Of multiples of 16, not of 128: for fp8, and in cells that are made by hand.
  kSixteens,        ///< llama
  kGpt2Sixteens,    ///< gpt2
  kExpertSixteens,  ///< qwen2_moe: 12 experts, 3 for a token, and one that all share by a gate
  kLatentSixteens,  ///< deepseek_v3 with 12 experts, but in the first layer
  // With 12 experts, in cells that are made by hand.
  kQwen2Moe,  ///< 3 for a token, and one that all share by a gate; the first of 3 layers has none;
              ///< an auxiliary loss
  kMixtral,   ///< 2 for a token, as weights of one
  kGlm4Moe,   ///< 3 for a token, of 2 groups of 3; a bias that moves; the first layer has none
  kLatents,   ///< deepseek_v3 whose first layer alone has no experts; heads wider than values
  kLatentsOfKeys,  ///< without a latent of q; values wider than keys
  kGptOss,  ///< 3 for a token; sinks, biases everywhere, units that clamp; a window in one layer
};
inline constexpr MeshModel kMeshModels[] = {
    MeshModel::kLlama, MeshModel::kOneKey, MeshModel::kOlmo3, MeshModel::kGemma3, MeshModel::kGpt2};
inline constexpr std::int64_t kMeshTokens = 24;

std::string name_of(MeshModel model);
const ModelConfig& config_of(MeshModel model);

/// Which products adapters stand beside: of all layers, some of the last one, experts' and q_proj,
/// the head and one of each layer, the head alone.
enum class AdaptedPart : std::uint8_t { kLayers, kLast, kExperts, kHead, kHeadAlone };

/// One line. Settings that mean nothing in a mesh (sequence parallelism without a tensor axis) are
/// off.
struct MeshCell {
  MeshModel model = MeshModel::kLlama;
  int tensor = 1, context = 1, data = 1;
  int zero_stage = 0;
  bool hybrid = false;  ///< ZeRO within a part of data x context (parallel.zero_group)
  bool sequence_parallel = false;
  ContextMethod context_method = ContextMethod::kRing;
  Recompute recompute = Recompute::kNone;
  int accumulation = 1;
  bool documents = false;  ///< masked, positions restart, the end token's target not counted
  bool bf16 = false;
  std::optional<Fp8Precision> fp8 = {};
  // Of cells that are made by hand: the table has one stage.
  int pipeline = 1;
  std::string schedule = "1f1b";
  int layers = 0;  ///< in place of the model's; 0: as they are
  bool library_sums = false;
  int expert = 1, expert_tensor = 1;
  DispatchMethod dispatch = DispatchMethod::kAllToAll;
  int adapter_rank = 0;     ///< > 0: adapters beside a frozen base, in cells that are made by hand
  bool magnitudes = false;  ///< of those
  AdaptedPart adapted = AdaptedPart::kLayers;
  double z_loss = 0;     ///< of the head's logits
  bool groups = false;   ///< some of the parameters stand still, others have a rate of their own;
                         ///< weights are averaged; in cells that are made by hand
  bool dropout = false;  ///< wherever the model has any; likewise
  bool coded = false;    ///< moments in 8 bits; likewise
  OptimizerKind optimizer = OptimizerKind::kAdamW;  ///< likewise

  [[nodiscard]] int ranks() const { return pipeline * tensor * context * data; }
  /// Sequences of a step: about 12, and the data ranks and micro-batches divide them.
  [[nodiscard]] std::int64_t global_batch() const;
  [[nodiscard]] std::optional<std::int64_t> zero_group() const;
  [[nodiscard]] RunConfig config() const;
  [[nodiscard]] std::string text() const;
  /// The same model on one rank, every choice the plain one.
  [[nodiscard]] MeshCell alone() const;
  /// Cells of equal classes promise equal bits after any number of steps.
  [[nodiscard]] std::string bit_class() const;
};

/// All legal cells of so many ranks. `kOnceEach`: of recompute, accumulation and documents one
/// combination for each choice of the others, all in turn.
enum class Combinations : std::uint8_t { kOnceEach, kAll };
std::vector<MeshCell> legal_cells(int ranks, Combinations which);

/// A few of all legal cells in which every legal pair of two settings occurs.
std::vector<MeshCell> covering_cells(int ranks);

/// One cell for each mesh of so many ranks and each way that attention has there, the models and
/// sequence parallelism in turn.
std::vector<MeshCell> meshes_in_turn(int ranks);

/// Cells of models with experts: every mesh of so many ranks and every extent of experts on it,
/// other settings in turn.
std::vector<MeshCell> expert_cells(int ranks);
/// Of models whose heads come from latents.
std::vector<MeshCell> latent_cells(int ranks);
/// Of gpt_oss, likewise: every mesh, every way of attention there, experts in other extents.
std::vector<MeshCell> sink_cells(int ranks);

/// Variants of a cell that fall into few classes of equal bits: stages of ZeRO, recompute, and the
/// same twice.
std::vector<MeshCell> bit_cells(const MeshCell& cell);

}  // namespace trireme
