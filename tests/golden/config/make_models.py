"""Writes models.json: Hugging Face configs and what transformers reads in them (made with transformers 5)."""

import json
import pathlib

from transformers import AutoConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
CASES = [
    {"model_type": "llama"},
    {"model_type": "mistral"},
    {"model_type": "ministral"},
    {"model_type": "ministral3"},
    {"model_type": "qwen2"},
    {"model_type": "qwen3"},
    {"model_type": "smollm3"},
    {"model_type": "olmo2"},
    {"model_type": "olmo3"},
    {"model_type": "gemma3_text"},
    {"model_type": "qwen2_moe"},
    {"model_type": "qwen3_moe"},
    {"model_type": "mixtral"},
    {"model_type": "olmoe"},
    {"model_type": "glm4_moe", "head_dim": 128},
    {"model_type": "deepseek_v3"},
    {"model_type": "gpt_oss"},
    {"model_type": "gpt2"},
    {"model_type": "llama", "num_key_value_heads": 8, "rope_theta": 500000.0, "vocab_size": 128256,
     "max_position_embeddings": 131072, "rope_scaling": LLAMA3, "rms_norm_eps": 1e-5, "tie_word_embeddings": True},
    {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    {"model_type": "llama", "num_attention_heads": 8},
    {"model_type": "llama", "num_attention_heads": 8, "head_dim": 24, "num_key_value_heads": None},
    {"model_type": "llama", "rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 12345.0}},
    {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 3}},
    {"model_type": "llama", "rope_theta": None, "rope_parameters": {"rope_theta": 70000.0, "rope_type": "default"}},
    {"model_type": "llama", "eos_token_id": [5, 6], "bos_token_id": None, "initializer_range": 0.01},
    {"model_type": "mistral", "hidden_size": 1024, "num_attention_heads": 16,
     "sliding_window": None, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "vocab_size": 32768},
    {"model_type": "mistral", "hidden_size": 5120, "num_attention_heads": 32, "head_dim": 128, "sliding_window": 32768},
    {"model_type": "qwen2", "rope_theta": 1000000.0, "num_attention_heads": 28, "num_key_value_heads": 4,
     "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "use_sliding_window": False,
     "sliding_window": 131072, "max_window_layers": 28, "bos_token_id": 151643, "eos_token_id": 151645},
    {"model_type": "qwen2", "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
    {"model_type": "qwen2", "num_attention_heads": 8, "num_key_value_heads": None},
    {"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8,
     "attention_bias": True, "tie_word_embeddings": True},
    {"model_type": "qwen3", "head_dim": 64, "rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 16,
                                                               "rope_theta": 1000000.0}},
    {"model_type": "ministral", "num_hidden_layers": 3, "sliding_window": 32768, "rope_theta": 1e8,
     "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "head_dim": 128},
    {"model_type": "ministral3", "hidden_size": 3072, "head_dim": 128, "num_hidden_layers": 26, "tie_word_embeddings": True,
     "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
                         "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                         "llama_4_scaling_beta": 0.1}},
    {"model_type": "smollm3", "num_hidden_layers": 8, "use_sliding_window": True, "sliding_window": 512, "mlp_bias": True,
     "rope_theta": 5000000.0, "max_position_embeddings": 65536, "num_key_value_heads": None},
    {"model_type": "smollm3", "num_hidden_layers": 3, "no_rope_layers": [1, 0, 1, 0], "attention_bias": True,
     "tie_word_embeddings": False},
    {"model_type": "olmo2", "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16,
     "num_hidden_layers": 16, "rms_norm_eps": 1e-6, "rope_theta": 500000, "vocab_size": 100352, "eos_token_id": 100257},
    {"model_type": "olmo3", "num_hidden_layers": 9, "rope_theta": 250000.0, "num_key_value_heads": 8, "sliding_window": 99,
     "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192, "beta_fast": 32,
                      "beta_slow": 1, "attention_factor": 1.2079441541679836}},
    {"model_type": "olmo3", "num_hidden_layers": 3, "attention_bias": True,
     "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
     "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 7e3}}},
    {"model_type": "gemma3_text", "hidden_size": 1152, "num_attention_heads": 4, "num_key_value_heads": 1,
     "intermediate_size": 6912, "sliding_window": 512, "sliding_window_pattern": 6, "rope_theta": 1000000,
     "rope_local_base_freq": 10000, "eos_token_id": [1, 106], "query_pre_attn_scalar": 256, "vocab_size": 262144,
     "max_position_embeddings": 32768},
    {"model_type": "gemma3_text", "num_hidden_layers": 5, "sliding_window_pattern": 2, "query_pre_attn_scalar": 168,
     "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_local_base_freq": 5000.0, "head_dim": 128},
    {"model_type": "qwen2_moe", "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
     "intermediate_size": 18944, "num_hidden_layers": 28, "num_experts": 64, "num_experts_per_tok": 8,
     "moe_intermediate_size": 2560, "shared_expert_intermediate_size": 20480, "norm_topk_prob": True, "qkv_bias": False,
     "router_aux_loss_coef": 0.01, "output_router_logits": True, "rope_theta": 1000000.0},
    {"model_type": "qwen2_moe", "num_hidden_layers": 6, "use_sliding_window": True, "max_window_layers": 3,
     "sliding_window": 99, "decoder_sparse_step": 2, "mlp_only_layers": [3, 77]},
    {"model_type": "qwen2_moe", "num_hidden_layers": 2, "sliding_window": 0, "use_sliding_window": False,
     "layer_types": ["full_attention", "full_attention"]},
    {"model_type": "qwen3_moe", "num_hidden_layers": 4, "head_dim": 128, "norm_topk_prob": True, "attention_bias": True,
     "mlp_only_layers": [0, 2], "num_local_experts": 16, "max_window_layers": 4, "sliding_window": None, "rope_theta": 1e6},
    {"model_type": "qwen3_moe", "num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 77,
     "decoder_sparse_step": 3, "num_experts": 5, "num_experts_per_tok": 5, "moe_intermediate_size": 24},
    {"model_type": "mixtral", "hidden_size": 6144, "intermediate_size": 16384, "num_attention_heads": 48,
     "num_hidden_layers": 56, "max_position_embeddings": 65536, "router_jitter_noise": 0.0, "rope_theta": 1e6},
    {"model_type": "mixtral", "num_hidden_layers": 2, "sliding_window": 4096, "num_local_experts": 3,
     "num_experts_per_tok": 1, "head_dim": 64, "output_router_logits": True, "router_aux_loss_coef": 0.02},
    {"model_type": "olmoe", "num_hidden_layers": 2, "norm_topk_prob": True, "attention_bias": True, "num_experts": 4,
     "num_experts_per_tok": 2, "num_key_value_heads": 4, "intermediate_size": 96, "clip_qkv": None},
    {"model_type": "glm4_moe", "num_hidden_layers": 3, "attention_bias": True, "use_qk_norm": True, "head_dim": 64,
     "num_local_experts": 16, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": False,
     "n_shared_experts": 2, "first_k_dense_replace": 2, "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    # The keys of the published file, but for its quantization.
    {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False,
     "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "aux_loss_alpha": 0.001,
     "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
     "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
     "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
     "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128,
     "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
     "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
     "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                      "original_max_position_embeddings": 4096, "type": "yarn"},
     "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": True,
     "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
     "transformers_version": "4.33.1", "use_cache": True, "v_head_dim": 128, "vocab_size": 129280},
    # Moonlight's: queries without a latent.
    {"model_type": "deepseek_v3", "hidden_size": 2048, "intermediate_size": 11264, "moe_intermediate_size": 1408,
     "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, "n_group": 1,
     "topk_group": 1, "n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2, "first_k_dense_replace": 1,
     "routed_scaling_factor": 2.446, "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "vocab_size": 163840,
     "max_position_embeddings": 8192, "num_nextn_predict_layers": 0},
    {"model_type": "deepseek_v3", "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": None,
     "num_local_experts": 16, "num_mtp_layers": 2, "qk_nope_head_dim": 20, "qk_rope_head_dim": 12, "v_head_dim": 40,
     "kv_lora_rank": 33, "q_lora_rank": 7, "rope_interleave": False, "norm_topk_prob": None, "attention_bias": True,
     "head_dim": 12, "first_k_dense_replace": 2,
     "rope_parameters": {"rope_type": "yarn", "rope_theta": 7e3, "factor": 4.0, "mscale_all_dim": 0.707,
                         "original_max_position_embeddings": 512}},
    {"model_type": "deepseek_v3", "num_hidden_layers": 1, "rope_interleave": None,
     "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5, "mscale": 2.0,
                      "original_max_position_embeddings": 512}},
    # The keys of the published file, but for its quantization.
    {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
     "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
     "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880,
     "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072,
     "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
     "num_local_experts": 32, "output_router_logits": False, "pad_token_id": 199999, "rms_norm_eps": 1e-05,
     "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                      "rope_type": "yarn", "truncate": False},
     "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
     "tie_word_embeddings": False, "transformers_version": "4.55.0.dev0", "use_cache": True, "vocab_size": 201088},
    {"model_type": "gpt_oss", "num_hidden_layers": 3, "num_experts": 6, "swiglu_alpha": 1.5, "swiglu_limit": 3.0,
     "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "sliding_window": 40, "head_dim": 40,
     "hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": False,
     "rope_theta": 7000.0, "output_router_logits": True, "tie_word_embeddings": True},
    {"model_type": "gpt_oss", "num_hidden_layers": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    {"model_type": "gpt2", "n_embd": 1024, "n_head": 16, "n_layer": 24, "n_positions": 2048, "n_inner": 3000},
    {"model_type": "gpt2", "hidden_size": 96, "num_attention_heads": 3, "num_hidden_layers": 2,
     "max_position_embeddings": 64, "layer_norm_epsilon": 1e-6, "tie_word_embeddings": False},
    {"model_type": "gpt2", "vocab_size": 307, "bos_token_id": None, "eos_token_id": 3},
]


def token(value):
    if isinstance(value, list):
        value = value[0]
    return -1 if value is None else value


def experts(c):
    if c.model_type in ("glm4_moe", "deepseek_v3"):
        return {
            "count": c.n_routed_experts, "chosen": c.num_experts_per_tok, "ffn": c.moe_intermediate_size,
            "normalized": bool(c.norm_topk_prob), "shared": c.n_shared_experts * c.moe_intermediate_size,
            "groups": c.n_group, "groups_chosen": c.topk_group, "scale": c.routed_scaling_factor,
            "layers": [int(i >= c.first_k_dense_replace) for i in range(c.num_hidden_layers)],
        }
    qwen = c.model_type in ("qwen2_moe", "qwen3_moe")
    step, dense = (c.decoder_sparse_step, c.mlp_only_layers) if qwen else (1, [])  # as their decoder layers have it
    clamp = {"swiglu_alpha": c.swiglu_alpha, "swiglu_limit": c.swiglu_limit} if c.model_type == "gpt_oss" else {}
    local = c.model_type in ("mixtral", "gpt_oss")
    return {
        **clamp, "count": c.num_local_experts if local else c.num_experts, "chosen": c.num_experts_per_tok,
        "ffn": c.moe_intermediate_size if qwen else c.intermediate_size,
        "normalized": getattr(c, "norm_topk_prob", True), "shared": getattr(c, "shared_expert_intermediate_size", 0),
        "aux_coefficient": c.router_aux_loss_coef, "aux_loss": c.output_router_logits,
        "layers": [int(i not in dense and (i + 1) % step == 0) for i in range(c.num_hidden_layers)],
    }


def read(keys):
    c = AutoConfig.for_model(**json.loads(json.dumps(keys)))
    gpt2, mistral, qwen2 = (c.model_type == name for name in ("gpt2", "mistral", "qwen2"))
    qwen2_moe = c.model_type == "qwen2_moe"
    bias = gpt2 or (not qwen2 and getattr(c, "attention_bias", False))
    model = {
        "layers": c.num_hidden_layers, "hidden": c.hidden_size, "heads": c.num_attention_heads,
        "ffn": (c.n_inner or 4 * c.n_embd) if gpt2 else c.intermediate_size,
        "kv_heads": c.num_attention_heads if gpt2 else c.num_key_value_heads,
        "head_dim": getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
        "vocab_size": c.vocab_size, "max_positions": c.max_position_embeddings,
        "norm_eps": c.layer_norm_epsilon if gpt2 else c.rms_norm_eps, "init_std": c.initializer_range,
        "tied_embeddings": c.tie_word_embeddings, "qkv_bias": qwen2 or (c.qkv_bias if qwen2_moe else bias),
        "attention_out_bias": bias and c.model_type != "glm4_moe", "mlp_bias": gpt2 or getattr(c, "mlp_bias", False),
        "bos_token": token(c.bos_token_id), "end_token": token(c.eos_token_id),
    }
    if mistral or c.model_type in ("ministral3", "mixtral", "qwen3_moe"):
        model["sliding_window"] = c.sliding_window or 0
    if c.model_type == "smollm3":
        model["rotates"] = c.no_rope_layers[:c.num_hidden_layers]
    if c.model_type in ("smollm3", "ministral", "olmo3", "gemma3_text", "qwen2_moe", "gpt_oss"):
        model["windows"] = [c.sliding_window if kind == "sliding_attention" else 0 for kind in c.layer_types]
    if c.model_type in ("qwen2_moe", "qwen3_moe", "mixtral", "olmoe", "glm4_moe", "deepseek_v3", "gpt_oss"):
        model["experts"] = experts(c)
    if c.model_type == "deepseek_v3":
        model["latent"] = {
            "q_rank": c.q_lora_rank or 0, "kv_rank": c.kv_lora_rank, "nope_dim": c.qk_nope_head_dim,
            "rope_dim": c.qk_rope_head_dim, "value_dim": c.v_head_dim, "interleaved": bool(c.rope_interleave)}
        model["head_dim"] = max(c.qk_head_dim, c.v_head_dim)  # as attention computes heads; theirs is qk_rope_head_dim
        model["score_scale"] = yarn_apply_mscale(c.rope_parameters, c.qk_head_dim ** -0.5)
    if c.model_type == "gemma3_text":
        model["score_scale"] = c.query_pre_attn_scalar ** -0.5
    if "full_attention" in (c.rope_parameters if not gpt2 else {}):
        model["ropes"] = c.rope_parameters
    elif not gpt2:
        model["rope"] = {k: v for k, v in c.rope_parameters.items() if k not in ("type", "max_position_embeddings")}
    return {"keys": keys, "model": model}


here = pathlib.Path(__file__).parent
lines = ",\n".join(json.dumps(read(keys)) for keys in CASES)
(here / "models.json").write_text(f"[\n{lines}\n]\n")
