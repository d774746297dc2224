"""The model cases: odd sizes on purpose, each small enough that its golden is a few hundred KB."""

from transformers import (DeepseekV3Config, Gemma3TextConfig, Glm4MoeConfig, GPT2Config, GptOssConfig, LlamaConfig, Ministral3Config,
                          MinistralConfig, MistralConfig, MixtralConfig, Olmo2Config, Olmo3Config, OlmoeConfig, Qwen2Config,
                          Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig, SmolLM3Config)

VOCAB = 307
TOKENS = 37
BATCH = 3
SPECIAL = {"bos_token_id": 305, "eos_token_id": 306}


def _llama_like(kind, **keys):
    base = dict(vocab_size=VOCAB, num_hidden_layers=2, max_position_embeddings=256, **SPECIAL)
    return kind(**{**base, **keys})


def _gpt2(**keys):
    base = dict(vocab_size=VOCAB, n_layer=2, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
                attn_pdrop=0.0, **SPECIAL)
    return GPT2Config(**{**base, **keys})


def _narrow(rope, **keys):
    return dict(hidden_size=36, intermediate_size=40, num_attention_heads=3, num_key_value_heads=1,
                head_dim=24, rope_parameters=rope, **keys)


_QWEN2_MOE = dict(hidden_size=36, intermediate_size=40, num_attention_heads=3, num_key_value_heads=1,
                  tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})


def cases():
    """name -> config. The name of a case says what it alone covers."""
    return {
        # 6:2 heads of 12 (72 != hidden 48), untied, some targets masked
        "llama_gqa": _llama_like(
            LlamaConfig, hidden_size=48, intermediate_size=40, num_attention_heads=6,
            num_key_value_heads=2, head_dim=12, rms_norm_eps=1e-5),
        # every bias there is, 3:3 heads of 24 (72 != hidden 48), tied
        "llama_bias_tied": _llama_like(
            LlamaConfig, hidden_size=48, intermediate_size=40, num_attention_heads=3,
            num_key_value_heads=3, head_dim=24, attention_bias=True, mlp_bias=True,
            tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
        "llama_rope_linear": _llama_like(
            LlamaConfig, tie_word_embeddings=True,
            **_narrow({"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})),
        # original 64: wavelengths below 16 stay, above 64 are divided, two lie between
        "llama_rope_llama3": _llama_like(
            LlamaConfig, tie_word_embeddings=True,
            **_narrow({"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
                       "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                       "original_max_position_embeddings": 64})),
        "llama_rope_yarn": _llama_like(
            LlamaConfig, tie_word_embeddings=True, **{
                **_narrow({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                           "original_max_position_embeddings": 16}),
                "max_position_embeddings": 64}),
        # yarn with every option: fractional correction dims, mscale quotient, own betas
        "qwen3_rope_yarn_options": _llama_like(
            Qwen3Config, tie_word_embeddings=True, **{
                **_narrow({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                           "original_max_position_embeddings": 16, "beta_fast": 2.0,
                           "beta_slow": 0.25, "mscale": 1.0, "mscale_all_dim": 0.5,
                           "truncate": False}),
                "max_position_embeddings": 64}),
        # 6:2 heads of 12 (72 != hidden 48), no biases; a window that just holds the batch's 37 tokens
        "mistral": _llama_like(
            MistralConfig, hidden_size=48, intermediate_size=40, num_attention_heads=6,
            num_key_value_heads=2, head_dim=12, sliding_window=TOKENS,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        # the same with a window that hides most of the batch's tokens from its last
        "mistral_window": _llama_like(
            MistralConfig, hidden_size=48, intermediate_size=40, num_attention_heads=6,
            num_key_value_heads=2, head_dim=12, sliding_window=11,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        # windows by layer without a key that switches them on
        "ministral": _llama_like(
            MinistralConfig, hidden_size=48, intermediate_size=40, num_attention_heads=6,
            num_key_value_heads=2, head_dim=12, sliding_window=9,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        # yarn, and queries that grow twice within the batch's 37 tokens
        "ministral3": _llama_like(
            Ministral3Config, tie_word_embeddings=True, pad_token_id=None, **{
                **_narrow({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                           "original_max_position_embeddings": 16, "beta_fast": 32.0, "beta_slow": 1.0,
                           "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}),
                "max_position_embeddings": 64}),
        # a layer that sees all, then one that sees nine positions
        "qwen3_window": _llama_like(
            Qwen3Config, hidden_size=48, intermediate_size=40, num_attention_heads=6,
            num_key_value_heads=2, head_dim=24, tie_word_embeddings=True, use_sliding_window=True,
            sliding_window=9, max_window_layers=1,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        # every other layer without RoPE, whose queries see eleven positions; the family's own base
        "smollm3": _llama_like(
            SmolLM3Config, hidden_size=48, intermediate_size=40, num_attention_heads=6,
            num_key_value_heads=2, no_rope_layer_interval=2, use_sliding_window=True,
            sliding_window=11, pad_token_id=None),
        # norms behind the branches alone, q/k norm over all heads (72 and 24 columns != hidden 48)
        "olmo2": _llama_like(
            Olmo2Config, hidden_size=48, intermediate_size=40, num_attention_heads=6,
            num_key_value_heads=2, head_dim=12, pad_token_id=None,
            rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
        # the same with a window in one layer and yarn in the other alone
        "olmo3": _llama_like(
            Olmo3Config, hidden_size=36, intermediate_size=40, num_attention_heads=3,
            num_key_value_heads=1, sliding_window=11, pad_token_id=None,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                                   "original_max_position_embeddings": 64}}),
        # four norms of 1 + w, scaled embedding, GeGLU, scores by another size than the head's, two bases
        "gemma3": _llama_like(
            Gemma3TextConfig, hidden_size=48, intermediate_size=40, num_attention_heads=4,
            num_key_value_heads=2, head_dim=24, query_pre_attn_scalar=20, sliding_window=11,
            pad_token_id=None, layer_types=["sliding_attention", "full_attention"],
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}}),
        # 3 heads of 24 = hidden 72, one kv head, q/k/v biases, no head_dim key of its own
        "qwen2": _llama_like(
            Qwen2Config, hidden_size=72, intermediate_size=40, num_attention_heads=3,
            num_key_value_heads=1, tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        # 6:2 heads of 24 (144 != hidden 48), q/k norm
        "qwen3_gqa": _llama_like(
            Qwen3Config, hidden_size=48, intermediate_size=40, num_attention_heads=6,
            num_key_value_heads=2, head_dim=24, tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        # q/k norm together with attention biases, untied
        "qwen3_bias_untied": _llama_like(
            Qwen3Config, attention_bias=True,
            **_narrow({"rope_type": "default", "rope_theta": 10000.0})),
        # weights of the two best of six divided by their sum, q/k norm by head (72 != hidden 36)
        "qwen3_moe": _llama_like(
            Qwen3MoeConfig, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20, norm_topk_prob=True,
            tie_word_embeddings=True, **_narrow({"rope_type": "default", "rope_theta": 1000000.0})),
        # weights as the softmax over all gives them, a gated MLP that every token takes, q/k/v biases
        "qwen2_moe": _llama_like(
            Qwen2MoeConfig, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=14,
            shared_expert_intermediate_size=28, norm_topk_prob=False, **_QWEN2_MOE),
        # a dense layer before one of experts
        "qwen2_moe_mixed": _llama_like(
            Qwen2MoeConfig, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20,
            shared_expert_intermediate_size=12, mlp_only_layers=[0], norm_topk_prob=True, **_QWEN2_MOE),
        # its own names on disk, always divided by the sum; a window that hides tokens
        "mixtral": _llama_like(
            MixtralConfig, num_local_experts=7, num_experts_per_tok=2, sliding_window=11, tie_word_embeddings=True,
            **{**_narrow({"rope_type": "default", "rope_theta": 1000000.0}), "intermediate_size": 20}),
        # half of each head rotates, groups, a dense layer in front, weights that sum to 1.7, norms of q and k
        "glm4_moe": _llama_like(
            Glm4MoeConfig, **_narrow({"rope_type": "default", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5}),
            num_nextn_predict_layers=0, moe_intermediate_size=20, n_routed_experts=6, num_experts_per_tok=2, n_group=3,
            topk_group=2, routed_scaling_factor=1.7, use_qk_norm=True, first_k_dense_replace=1),
        # a twelfth of each head rotates, two shared experts, every layer has experts, weights as they are
        "glm4_moe_plain": _llama_like(
            Glm4MoeConfig, **_narrow({"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.1}),
            num_nextn_predict_layers=0, moe_intermediate_size=14, n_routed_experts=5, num_experts_per_tok=3,
            n_shared_experts=2, norm_topk_prob=False, attention_bias=True, first_k_dense_replace=0),
        # latents of queries and of keys and values, dims that turn side by side, yarn that also scales scores, values
        # narrower than keys, biases, groups of which the best two of each count, a dense layer in front
        "deepseek_v3": _llama_like(
            DeepseekV3Config, hidden_size=36, intermediate_size=40, num_attention_heads=4, num_key_value_heads=4,
            q_lora_rank=22, kv_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=8, v_head_dim=14, attention_bias=True,
            num_nextn_predict_layers=0, moe_intermediate_size=14, n_routed_experts=12, num_experts_per_tok=3, n_group=4,
            topk_group=2, first_k_dense_replace=1,
            rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "beta_fast": 4.0, "beta_slow": 0.25,
                             "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 0.8}),
        # queries of the input itself, halves that turn, values wider than keys, two shared experts
        "deepseek_v3_plain": _llama_like(
            DeepseekV3Config, hidden_size=36, intermediate_size=40, num_attention_heads=4, num_key_value_heads=4,
            q_lora_rank=None, kv_lora_rank=26, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=16, rope_interleave=False,
            num_nextn_predict_layers=0, moe_intermediate_size=14, n_routed_experts=8, num_experts_per_tok=2, n_group=2,
            topk_group=1, n_shared_experts=2, norm_topk_prob=False, routed_scaling_factor=1.3, rms_norm_eps=1e-3,
            first_k_dense_replace=0, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        # q/k norm over all heads (36 and 12 columns), weights not divided, four of six
        "olmoe": _llama_like(
            OlmoeConfig, hidden_size=36, intermediate_size=20, num_attention_heads=3, num_key_value_heads=1,
            num_experts=6, num_experts_per_tok=4, norm_topk_prob=False, pad_token_id=None,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        # sinks, every bias there is, a window in one layer, units that clamp many of their values, yarn without whole
        # correction dims, 3 heads of 24 (72 != hidden 36)
        "gpt_oss": _llama_like(
            GptOssConfig, **{
                **_narrow({"rope_type": "yarn", "rope_theta": 150000.0, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
                           "truncate": False, "original_max_position_embeddings": 16}),
                "intermediate_size": 20, "max_position_embeddings": 64}, num_local_experts=7, num_experts_per_tok=3,
            sliding_window=11, swiglu_limit=0.8, pad_token_id=None),
        # no biases of attention, a layer that sees all first, units of another slope that hardly clamp, tied
        "gpt_oss_plain": _llama_like(
            GptOssConfig, hidden_size=48, intermediate_size=14, num_attention_heads=6, num_key_value_heads=2, head_dim=12,
            num_local_experts=5, num_experts_per_tok=2, attention_bias=False, swiglu_alpha=1.3, swiglu_limit=2.0,
            sliding_window=9, layer_types=["full_attention", "sliding_attention"], tie_word_embeddings=True,
            pad_token_id=None, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        # 3 heads of 24, tied (the family's usual form), n_inner apart from 4 x hidden
        "gpt2": _gpt2(n_embd=72, n_head=3, n_inner=50),
        # untied head, n_inner absent (= 4 x hidden), other epsilon
        "gpt2_untied": _gpt2(n_embd=36, n_head=3, tie_word_embeddings=False, layer_norm_epsilon=1e-3),
    }


MASKED_CASES = {"llama_gqa", "gpt2_untied"}
