#include "train/mesh_table.h"

#include <algorithm>
#include <array>
#include <map>

#include "config/adapters.h"
#include "config/dropout.h"
#include "config/field_types.h"
#include "config/model_parse.h"
#include "plan/mesh_rules.h"

namespace trireme {

namespace {

constexpr std::int64_t kAboutSequences = 12;  // of a global batch

ModelConfig model_of(const std::string& keys) {
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  const ModelConfig model =
      read_model(parse_json("{" + keys + "}", "mesh_table.cc"), problems, notes);
  expect(problems.empty() && !model.layers.empty(), "a model that is refused: {}", keys);
  return model;
}

/// `keys`: of the latents.
ModelConfig latent_model(const std::string& sizes, const char* keys) {
  return model_of(sizes +
                  R"("model_type": "deepseek_v3", "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 4, "intermediate_size": 40, "n_routed_experts": 12,
          "num_experts_per_tok": 3, "moe_intermediate_size": 20, "n_group": 3, "topk_group": 2,
          "first_k_dense_replace": 1, "kv_lora_rank": 14, "qk_rope_head_dim": 4,)" +
                  keys);
}

// Weights large enough that attention is far from uniform.
ModelConfig make_config(MeshModel model) {
  const std::string range = R"("initializer_range": 0.1,)";
  const std::string common = R"("vocab_size": 61,)" + range;
  const std::string sizes = common + R"("hidden_size": 24, "max_position_embeddings": 64,)";
  const std::string heads =
      R"("num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 40,)";
  switch (model) {
    case MeshModel::kLlama:
      return model_of(sizes + heads + R"("model_type": "llama", "num_hidden_layers": 2)");
    case MeshModel::kOneKey:
      return model_of(range + R"("model_type": "llama", "num_hidden_layers": 2, "hidden_size": 24,
          "max_position_embeddings": 64, "vocab_size": 1301, "num_attention_heads": 12,
          "num_key_value_heads": 1, "intermediate_size": 48)");
    case MeshModel::kOlmo3:
      return model_of(sizes + heads +
                      R"("model_type": "olmo3", "num_hidden_layers": 3, "attention_bias": true,
          "sliding_window": 7, "tie_word_embeddings": true,
          "layer_types": ["sliding_attention", "full_attention", "sliding_attention"])");
    case MeshModel::kGemma3:
      return model_of(sizes + heads +
                      R"("model_type": "gemma3_text", "num_hidden_layers": 2, "head_dim": 8,
          "sliding_window": 7, "sliding_window_pattern": 2, "tie_word_embeddings": false)");
    case MeshModel::kGpt2:
      return model_of(common + R"("model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 12,
          "n_inner": 48, "n_positions": 64)");
    case MeshModel::kSixteens:
      return model_of(common + R"("model_type": "llama", "num_hidden_layers": 2, "hidden_size": 160,
          "head_dim": 16, "max_position_embeddings": 64, "num_attention_heads": 12,
          "num_key_value_heads": 2, "intermediate_size": 288)");
    case MeshModel::kExpertSixteens:
      return model_of(common + R"("model_type": "qwen2_moe", "num_hidden_layers": 2,
          "hidden_size": 192, "num_attention_heads": 12, "num_key_value_heads": 12,
          "max_position_embeddings": 64, "intermediate_size": 192, "num_experts": 12,
          "num_experts_per_tok": 3, "moe_intermediate_size": 96,
          "shared_expert_intermediate_size": 192, "mlp_only_layers": [0])");
    case MeshModel::kLatentSixteens:
      return model_of(common + R"("model_type": "deepseek_v3", "num_hidden_layers": 2,
          "hidden_size": 160, "num_attention_heads": 12, "num_key_value_heads": 12,
          "max_position_embeddings": 64, "intermediate_size": 192, "n_routed_experts": 12,
          "num_experts_per_tok": 3, "moe_intermediate_size": 192, "n_group": 3, "topk_group": 2,
          "first_k_dense_replace": 1, "q_lora_rank": 48, "kv_lora_rank": 80,
          "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 32)");
    case MeshModel::kQwen2Moe:
      return model_of(sizes + heads + R"("model_type": "qwen2_moe", "num_hidden_layers": 3,
          "num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 20,
          "shared_expert_intermediate_size": 28, "mlp_only_layers": [0],
          "output_router_logits": true, "router_aux_loss_coef": 0.1)");
    case MeshModel::kMixtral:
      return model_of(sizes + R"("model_type": "mixtral", "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 12,
          "num_experts_per_tok": 2, "intermediate_size": 20)");
    case MeshModel::kGlm4Moe:
      return model_of(sizes + heads + R"("model_type": "glm4_moe", "num_hidden_layers": 2,
          "n_routed_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 20,
          "n_group": 3, "topk_group": 2, "use_qk_norm": true, "head_dim": 8)");
    case MeshModel::kLatents:
      return latent_model(sizes, R"("q_lora_rank": 20, "qk_nope_head_dim": 6, "v_head_dim": 6)");
    case MeshModel::kLatentsOfKeys:
      return latent_model(sizes, R"("q_lora_rank": null, "qk_nope_head_dim": 4, "v_head_dim": 10)");
    case MeshModel::kGptOss:
      return model_of(sizes + heads + R"("model_type": "gpt_oss", "num_hidden_layers": 2,
          "num_local_experts": 12, "num_experts_per_tok": 3, "head_dim": 8, "sliding_window": 7,
          "swiglu_limit": 0.25)");
    case MeshModel::kGpt2Sixteens:
      return model_of(common + R"("model_type": "gpt2", "n_embd": 192, "n_layer": 2, "n_head": 12,
          "n_inner": 288, "n_positions": 64)");
  }
  throw InternalError("an unknown model");
}

std::string name_of(ContextMethod method) {
  switch (method) {
    case ContextMethod::kRing:
      return "ring";
    case ContextMethod::kAllGather:
      return "allgather";
    case ContextMethod::kUlysses:
      return "ulysses";
  }
  return "?";
}

std::string name_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kSelective:
      return "selective";
    case Recompute::kFull:
      return "full";
  }
  return "?";
}

std::string_view name_of(OptimizerKind kind) {
  return EnumWords<OptimizerKind>::kWords[static_cast<std::size_t>(kind)];
}

bool legal(const MeshCell& cell) {
  std::vector<Problem> problems;
  check_mesh_rules(cell.config(), cell.data, problems);
  return problems.empty();
}

/// What settings stand for in pairs; the extents of a mesh are one.
constexpr std::size_t kFactors = 9, kLevels = 128;
std::array<std::size_t, kFactors> levels_of(const MeshCell& cell) {
  const std::array<int, kFactors> levels = {static_cast<int>(cell.model),
                                            cell.tensor * 10 + cell.context,
                                            cell.zero_stage,
                                            cell.hybrid ? 1 : 0,
                                            cell.sequence_parallel ? 1 : 0,
                                            static_cast<int>(cell.context_method),
                                            static_cast<int>(cell.recompute),
                                            cell.accumulation,
                                            cell.documents ? 1 : 0};
  std::array<std::size_t, kFactors> unsigned_levels{};
  std::copy(levels.begin(), levels.end(), unsigned_levels.begin());
  return unsigned_levels;
}

/// Calls f(cell) for all choices of the settings that move data.
template <class F>
void for_each_mesh(int ranks, const F& f) {
  MeshCell cell;
  for (const MeshModel model : kMeshModels) {
    cell.model = model;
    for (cell.tensor = 1; cell.tensor <= ranks; ++cell.tensor) {
      for (cell.context = 1; cell.context <= ranks; ++cell.context) {
        if (ranks % (cell.tensor * cell.context) != 0) continue;
        cell.data = ranks / (cell.tensor * cell.context);
        for (int i = 0; i < 4 * 2 * 2 * 3; ++i) {
          cell.zero_stage = i % 4;
          cell.hybrid = i / 4 % 2 != 0;
          cell.sequence_parallel = i / 8 % 2 != 0;
          cell.context_method = static_cast<ContextMethod>(i / 16);
          if (cell.hybrid && (cell.zero_stage == 0 || cell.context * cell.data == 1)) continue;
          if (cell.sequence_parallel && cell.tensor == 1) continue;
          if (cell.context_method != ContextMethod::kRing && cell.context == 1) continue;
          if (legal(cell)) f(cell);
        }
      }
    }
  }
}

}  // namespace

std::string name_of(MeshModel model) {
  switch (model) {
    case MeshModel::kLlama:
      return "llama";
    case MeshModel::kOneKey:
      return "llama with one key head";
    case MeshModel::kOlmo3:
      return "olmo3";
    case MeshModel::kGemma3:
      return "gemma3";
    case MeshModel::kGpt2:
      return "gpt2";
    case MeshModel::kSixteens:
      return "llama of sixteens";
    case MeshModel::kGpt2Sixteens:
      return "gpt2 of sixteens";
    case MeshModel::kExpertSixteens:
      return "qwen2_moe of sixteens";
    case MeshModel::kLatentSixteens:
      return "deepseek_v3 of sixteens";
    case MeshModel::kQwen2Moe:
      return "qwen2_moe";
    case MeshModel::kMixtral:
      return "mixtral";
    case MeshModel::kGlm4Moe:
      return "glm4_moe";
    case MeshModel::kLatents:
      return "deepseek_v3";
    case MeshModel::kLatentsOfKeys:
      return "deepseek_v3 without a latent of q";
    case MeshModel::kGptOss:
      return "gpt_oss";
  }
  return "?";
}

const ModelConfig& config_of(MeshModel model) {
  static const std::vector<ModelConfig> configs = [] {
    std::vector<ModelConfig> all;
    for (const MeshModel each : kMeshModels) all.push_back(make_config(each));
    all.push_back(make_config(MeshModel::kSixteens));
    for (const MeshModel each :
         {MeshModel::kGpt2Sixteens, MeshModel::kExpertSixteens, MeshModel::kLatentSixteens,
          MeshModel::kQwen2Moe, MeshModel::kMixtral, MeshModel::kGlm4Moe, MeshModel::kLatents,
          MeshModel::kLatentsOfKeys, MeshModel::kGptOss})
      all.push_back(make_config(each));
    return all;
  }();
  return configs.at(static_cast<std::size_t>(model));
}

std::int64_t MeshCell::global_batch() const {
  const std::int64_t passes = std::int64_t{data} * accumulation;
  return passes * std::max<std::int64_t>(1, kAboutSequences / passes);
}

std::optional<std::int64_t> MeshCell::zero_group() const {
  if (!hybrid) return std::nullopt;
  const int peers = context * data;
  return peers % 2 == 0 ? peers / 2 : 1;
}

namespace {

std::vector<std::string> targets_of(AdaptedPart adapted, const ModelConfig& model) {
  const std::string last = fmt::format("layers.{}.", model.layer_count() - 1);
  switch (adapted) {
    case AdaptedPart::kLayers:
      return {};
    case AdaptedPart::kLast:
      return {last + "self_attn.v_proj", last + "mlp.down_proj"};
    case AdaptedPart::kExperts:
      return {"q_proj", "experts.gate_up_proj", "experts.down_proj"};
    case AdaptedPart::kHead:
      return {"v_proj", "lm_head"};
    case AdaptedPart::kHeadAlone:
      return {"lm_head"};
  }
  return {};
}

}  // namespace

RunConfig MeshCell::config() const {
  RunConfig config;
  config.model = config_of(model);
  config.data.sequence_length = kMeshTokens;
  config.data.document_mask = config.data.mask_eod_loss = documents;
  config.precision.compute = bf16 ? ComputePrecision::kBf16 : ComputePrecision::kFp32;
  if (fp8) {
    config.precision.compute = ComputePrecision::kFp8;
    config.precision.fp8 = fp8;
  }
  config.optimizer.clip_grad_norm = 0.5;
  config.optimizer.eps = 1e-6;
  config.parallel.tensor = tensor;
  config.parallel.sequence_parallel = sequence_parallel;
  config.parallel.context = context;
  config.parallel.context_method = context_method;
  config.parallel.zero_stage = zero_stage;
  config.parallel.zero_group = zero_group();
  config.parallel.recompute = recompute;
  config.parallel.pipeline = pipeline;
  config.parallel.pipeline_schedule = schedule;
  if (layers > 0)
    config.model.layers.resize(static_cast<std::size_t>(layers), config.model.layer(0));
  config.parallel.expert = expert;
  config.parallel.expert_tensor = expert_tensor;
  config.moe.dispatch = dispatch;
  config.stability.z_loss = z_loss;
  if (library_sums) config.parallel.reduction_order = ReductionOrder::kLibrary;
  if (dropout) {
    config.model_backend.dropout = true;
    for (const char* key : {"attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop"})
      config.model.source[key] = 0.25;
    std::vector<std::string> none;
    take_dropout(config, none);
  }
  if (adapter_rank > 0) {
    config.lora.rank = adapter_rank;
    config.lora.dora = magnitudes;
    if (adapted != AdaptedPart::kExperts) config.lora.dropout = 0.25;
    config.lora.targets = targets_of(adapted, config.model);
    std::vector<Problem> none;
    take_adapters(config, none);
  }
  config.optimizer.kind = optimizer;
  if (optimizer == OptimizerKind::kLion) config.optimizer.betas = RunConfig::Optimizer::kLionBetas;
  if (coded) config.optimizer.state = MomentType::k8bit;
  if (optimizer == OptimizerKind::kMuon) config.optimizer.matrix_lr = 3 * config.optimizer.lr;
  if (groups) {
    config.optimizer.ema = optimizer == OptimizerKind::kScheduleFree ? 0 : 0.75;
    config.optimizer.groups = {{"embed", 1, std::nullopt, false},
                               {"wte", 1, std::nullopt, false},
                               {"layers.0.*norm", 1, std::nullopt, false},
                               {"o_proj", 1, std::nullopt, false},
                               {"down_proj", 0.25, 0}};
    config.model.groups = config.optimizer.groups;
  }
  return config;
}

std::string MeshCell::text() const {
  std::string text =
      fmt::format("{}, tensor {}, context {}, data {}", name_of(model), tensor, context, data);
  if (sequence_parallel) text += ", sequence parallel";
  if (context > 1) text += ", " + name_of(context_method);
  text += fmt::format(", zero {}", zero_stage);
  if (hybrid) text += fmt::format(" in groups of {}", *zero_group());
  text += fmt::format(", recompute {}, accumulation {}", name_of(recompute), accumulation);
  if (documents) text += ", documents";
  if (bf16) text += ", bf16";
  if (fp8)
    text += fmt::format(", fp8 by {}", fp8->recipe == Fp8Recipe::kBlock ? "blocks" : "tensors");
  if (library_sums) text += ", sums of the library";
  if (layers > 0) text += fmt::format(", {} layers", layers);
  if (expert > 1) text += fmt::format(", expert {}", expert);
  if (expert_tensor > 1) text += fmt::format(", expert tensor {}", expert_tensor);
  if (dispatch == DispatchMethod::kAllGather) text += ", tokens gathered";
  if (adapter_rank > 0) text += fmt::format(", adapters of rank {}", adapter_rank);
  if (magnitudes) text += " with magnitudes";
  static constexpr const char* kBeside[] = {"", " beside the last layer", " beside experts",
                                            " beside the head too", " beside the head alone"};
  text += kBeside[static_cast<int>(adapted)];
  text += fmt::format(", {}", name_of(optimizer));
  if (coded) text += ", moments in 8 bits";
  if (groups) text += ", groups";
  if (dropout) text += ", dropout";
  if (pipeline > 1) text += fmt::format(", pipeline {} by {}", pipeline, schedule);
  if (z_loss > 0) text += fmt::format(", z-loss {}", z_loss);
  return text;
}

MeshCell MeshCell::alone() const {
  MeshCell one;
  one.model = model;
  one.documents = documents;
  one.bf16 = bf16;
  one.fp8 = fp8;
  one.layers = layers;
  one.adapter_rank = adapter_rank;
  one.magnitudes = magnitudes;
  one.adapted = adapted;
  one.z_loss = z_loss;
  one.groups = groups;
  one.optimizer = optimizer;
  one.coded = coded;
  one.dropout = dropout;
  return one;
}

std::string MeshCell::bit_class() const {
  MeshCell same = *this;
  same.recompute = Recompute::kNone;
  same.pipeline = 1;
  // Stages 0 and 1 sum micro-batches, then ranks; 2 and 3 the other way round.
  same.zero_stage = accumulation == 1 || zero_stage < 2 ? 1 : 2;
  // Each source's part of an expert's gradient is a product, their sum the same tree on any ranks.
  if (expert_tensor == 1 && (accumulation == 1 || zero_stage >= 2)) same.expert = 1;
  same.dispatch = DispatchMethod::kAllToAll;
  return same.text();
}

std::vector<MeshCell> expert_cells(int ranks) {
  std::vector<MeshCell> cells;
  const auto add = [&](MeshCell cell) {
    if (legal(cell)) cells.push_back(cell);
  };
  int turn = 0;
  for (const MeshModel model : {MeshModel::kQwen2Moe, MeshModel::kMixtral}) {
    for (int mesh = 0; mesh < ranks * ranks * 2; ++mesh) {
      MeshCell cell;
      cell.model = model;
      cell.tensor = mesh % ranks + 1;
      cell.context = mesh / ranks % ranks + 1;
      cell.sequence_parallel = mesh / ranks / ranks != 0;
      if (ranks % (cell.tensor * cell.context) != 0) continue;
      if (cell.sequence_parallel && cell.tensor == 1) continue;
      cell.data = ranks / (cell.tensor * cell.context);
      ++turn;
      cell.recompute = static_cast<Recompute>(turn % 3);
      cell.accumulation = 1 + turn % 2;
      cell.zero_stage = cell.accumulation == 1 ? turn / 2 % 4 : 2 + turn / 2 % 2;
      cell.documents = turn % 5 == 0;
      for (cell.expert = 1; cell.expert <= ranks; ++cell.expert) {
        if (ranks % cell.expert != 0) continue;
        add(cell);
        if (cell.expert == ranks && ranks > 1) {
          MeshCell other = cell;
          other.dispatch = DispatchMethod::kAllGather;
          add(other);
          other.expert = ranks / 2;
          other.expert_tensor = 2;
          if (ranks % 2 == 0) add(other);
          cell.zero_stage = 0;
          cell.accumulation = 3 - cell.accumulation;
          add(cell);
        }
      }
    }
  }
  // The bias of the choice moves by the counts of all ranks.
  for (int expert = 1; expert <= ranks; expert *= 2) {
    if (ranks % expert != 0) continue;
    for (const bool tensor : {false, true}) {
      MeshCell cell;
      cell.model = MeshModel::kGlm4Moe;
      cell.expert = expert;
      (tensor ? cell.tensor : cell.data) = ranks;
      cell.sequence_parallel = tensor && ranks > 1;
      cell.zero_stage = tensor ? 0 : 3;
      cell.recompute = tensor ? Recompute::kFull : Recompute::kNone;
      add(cell);
      cell.zero_stage = 2;
      cell.accumulation = 2;
      add(cell);
    }
  }
  return cells;
}

std::vector<MeshCell> sink_cells(int ranks) {
  std::vector<MeshCell> cells;
  int turn = 0;
  for (int mesh = 0; mesh < ranks * ranks * 2; ++mesh) {
    MeshCell cell;
    cell.model = MeshModel::kGptOss;
    cell.tensor = mesh % ranks + 1;
    cell.context = mesh / ranks % ranks + 1;
    cell.sequence_parallel = mesh / ranks / ranks != 0;
    if (ranks % (cell.tensor * cell.context) != 0) continue;
    if (cell.sequence_parallel && cell.tensor == 1) continue;
    cell.data = ranks / (cell.tensor * cell.context);
    for (int method = 0; method < (cell.context == 1 ? 1 : 3); ++method) {
      ++turn;
      cell.context_method = static_cast<ContextMethod>(method);
      cell.recompute = static_cast<Recompute>(turn % 3);
      cell.accumulation = 1 + turn % 2;
      cell.zero_stage = cell.accumulation == 1 ? turn / 2 % 4 : 2 + turn / 2 % 2;
      cell.documents = turn % 4 == 0;
      cell.dispatch = turn % 3 == 1 ? DispatchMethod::kAllGather : DispatchMethod::kAllToAll;
      // With 4 ranks parts of an expert are also on two of them.
      cell.expert_tensor = turn % 2 == 0 && ranks % 2 == 0 ? 2 : 1;
      cell.expert = ranks / cell.expert_tensor;
      if (legal(cell)) cells.push_back(cell);
      if (turn % 2 == 0 || cell.expert == 1) continue;
      cell.expert = 1;  // the same bits
      if (legal(cell)) cells.push_back(cell);
    }
  }
  return cells;
}

std::vector<MeshCell> latent_cells(int ranks) {
  std::vector<MeshCell> cells;
  int turn = 0;
  for (const MeshModel model : {MeshModel::kLatents, MeshModel::kLatentsOfKeys}) {
    for (int mesh = 0; mesh < ranks * ranks * 2; ++mesh) {
      MeshCell cell;
      cell.model = model;
      cell.tensor = mesh % ranks + 1;
      cell.context = mesh / ranks % ranks + 1;
      cell.sequence_parallel = mesh / ranks / ranks != 0;
      if (ranks % (cell.tensor * cell.context) != 0) continue;
      if (cell.sequence_parallel && cell.tensor == 1) continue;
      cell.data = ranks / (cell.tensor * cell.context);
      for (int i = 0; i < 2; ++i) {
        ++turn;
        cell.context_method = static_cast<ContextMethod>(cell.context == 1 ? 0 : turn % 3);
        cell.recompute = static_cast<Recompute>(turn / 2 % 3);
        cell.accumulation = 1 + turn % 2;
        cell.zero_stage = turn % 4;
        cell.expert = turn % 3 == 0 ? 1 : ranks;
        cell.documents = turn % 4 == 1;
        cell.bf16 = false;
        if (legal(cell)) cells.push_back(cell);
      }
    }
    for (const char* schedule : {"1f1b", "zb-h1", "zb-v"}) {
      MeshCell cell;
      cell.model = model;
      cell.pipeline = ranks;
      cell.schedule = schedule;
      cell.layers = 2 * ranks;
      cell.accumulation = 4;
      cell.recompute = static_cast<Recompute>(++turn % 3);
      if (ranks > 1 && legal(cell)) cells.push_back(cell);
    }
  }
  return cells;
}

std::vector<MeshCell> legal_cells(int ranks, Combinations which) {
  std::vector<MeshCell> cells;
  int turn = 0;
  for_each_mesh(ranks, [&](MeshCell cell) {
    for (int i = 0; i < 3 * 2 * 2; ++i) {
      cell.recompute = static_cast<Recompute>(i % 3);
      cell.accumulation = 1 + i / 3 % 2;
      cell.documents = i / 6 != 0;
      if (which == Combinations::kAll || i == turn) cells.push_back(cell);
    }
    turn = (turn + 5) % 12;
  });
  return cells;
}

std::vector<MeshCell> covering_cells(int ranks) {
  const std::vector<MeshCell> all = legal_cells(ranks, Combinations::kAll);
  const auto for_each_pair = [](const MeshCell& cell, const auto& f) {
    const auto levels = levels_of(cell);
    for (std::size_t a = 0; a < kFactors; ++a) {
      for (std::size_t b = a + 1; b < kFactors; ++b)
        f(((a * kFactors + b) * kLevels + levels[a]) * kLevels + levels[b]);
    }
  };
  std::vector<char> missing(kFactors * kFactors * kLevels * kLevels);
  for (const MeshCell& cell : all)
    for_each_pair(cell, [&](std::size_t pair) { missing[pair] = 1; });
  std::vector<MeshCell> chosen;
  while (true) {
    const MeshCell* best = nullptr;
    int most = 0;
    for (const MeshCell& cell : all) {
      int count = 0;
      for_each_pair(cell, [&](std::size_t pair) { count += missing[pair]; });
      if (count > most) {
        most = count;
        best = &cell;
      }
    }
    if (best == nullptr) return chosen;
    for_each_pair(*best, [&](std::size_t pair) { missing[pair] = 0; });
    chosen.push_back(*best);
  }
}

std::vector<MeshCell> meshes_in_turn(int ranks) {
  std::map<std::string, std::vector<MeshCell>> choices;
  for_each_mesh(ranks, [&](const MeshCell& cell) {
    if (cell.zero_stage > 0) return;
    MeshCell key = cell;
    key.model = MeshModel::kLlama;
    key.sequence_parallel = false;
    choices[key.text()].push_back(cell);
  });
  std::vector<MeshCell> cells;
  for (const auto& [key, all] : choices) cells.push_back(all[(cells.size() * 3 + 1) % all.size()]);
  return cells;
}

std::vector<MeshCell> bit_cells(const MeshCell& cell) {
  std::vector<MeshCell> cells;
  MeshCell variant = cell;
  for (int stage = 0; stage < 4; ++stage) {
    variant.zero_stage = stage;
    variant.recompute = static_cast<Recompute>(stage % 3);
    cells.push_back(variant);
  }
  cells.push_back(variant);
  if (cell.context * cell.data < 2 || cell.accumulation > 1) return cells;
  for (variant.hybrid = true; variant.zero_stage > 1; --variant.zero_stage)
    cells.push_back(variant);
  return cells;
}

}  // namespace trireme
