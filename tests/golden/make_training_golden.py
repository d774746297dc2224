#!/usr/bin/env python3
"""Writes training/: 20 AdamW steps in float64, and document_mask/: attention held inside documents.

usage: make_training_golden.py [--output DIR] [--only CASE]
"""

import argparse
import json
import pathlib

import numpy
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from cases import BATCH, TOKENS
from make_model_golden import (HERE, fp32_errors, generator, load_case, loss_and_gradients,
                               random_ids, write_expected, write_json)
from strict_double import build_double, strict_double
from token_file import write_token_file

STEPS, WARMUP = 20, 5
RECIPE = {
    "lr": 1e-3, "min_lr": 1e-4, "warmup_steps": WARMUP, "steps": STEPS, "betas": [0.9, 0.95],
    "eps": 1e-8, "weight_decay": 0.1, "global_batch": BATCH,
    "sequence_length": TOKENS,
}
# gpt2 clips at every step; at 2.4 llama_gqa clips at some and not at others.
CLIP = {"llama_gqa": 2.4, "gpt2": 1.0, "olmo3": 1.0, "gemma3": 1.0, "qwen2_moe": 1.0, "qwen3_moe": 1.0,
        "mixtral": 1.0, "olmoe": 1.0, "glm4_moe": 1.0, "deepseek_v3": 1.0, "gpt_oss": 1.0}
BIAS_RATE = {"glm4_moe": 0.01, "deepseek_v3": 0.01}  # of the experts' choice, once a step
# case -> the tensors whose final values are kept whole
TRAINED = {
    "llama_gqa": ("model.norm.weight", "model.layers.0.input_layernorm.weight",
                  "model.layers.1.self_attn.k_proj.weight"),
    "olmo3": ("model.layers.0.post_attention_layernorm.weight", "model.layers.0.self_attn.q_norm.weight",
              "model.layers.1.self_attn.k_norm.weight"),
    "gemma3": ("model.norm.weight", "model.layers.0.pre_feedforward_layernorm.weight",
               "model.layers.1.self_attn.q_norm.weight"),
    "qwen2_moe": ("model.layers.0.mlp.gate.weight", "model.layers.1.mlp.shared_expert_gate.weight",
                  "model.layers.0.mlp.experts.3.down_proj.weight"),
    "qwen3_moe": ("model.layers.0.mlp.gate.weight", "model.layers.1.self_attn.q_norm.weight",
                  "model.layers.1.mlp.experts.1.up_proj.weight"),
    "mixtral": ("model.layers.0.block_sparse_moe.gate.weight", "model.layers.1.block_sparse_moe.experts.1.w3.weight",
                "model.norm.weight"),
    "olmoe": ("model.layers.0.mlp.gate.weight", "model.layers.0.self_attn.k_norm.weight",
              "model.layers.1.mlp.experts.2.gate_proj.weight"),
    "glm4_moe": ("model.layers.1.mlp.gate.e_score_correction_bias", "model.layers.1.mlp.gate.weight",
                 "model.layers.0.self_attn.k_norm.weight"),
    "deepseek_v3": ("model.layers.1.mlp.gate.e_score_correction_bias", "model.layers.0.self_attn.q_a_layernorm.weight",
                    "model.layers.1.self_attn.kv_a_proj_with_mqa.weight"),
    "gpt_oss": ("model.layers.0.self_attn.sinks", "model.layers.1.mlp.router.bias",
                "model.layers.0.mlp.experts.gate_up_proj_bias[2].up"),
    "gpt2": ("transformer.ln_f.bias", "transformer.h.0.mlp.c_fc.bias", "transformer.wpe.weight"),
}
MASKED = {"llama_rope_llama3": "rotary positions", "gpt2_untied": "learned positions"}


def learning_rate(k):
    """The k-th update, k = 1, 2, ...: warm-up reaches the peak at k = W, the cosine ends at k = D."""
    if k <= WARMUP:
        return RECIPE["lr"] * k / WARMUP
    t = (k - WARMUP) / (STEPS - WARMUP)
    f = (1 + numpy.cos(numpy.pi * t)) / 2
    return float(RECIPE["min_lr"] + (RECIPE["lr"] - RECIPE["min_lr"]) * f)


def training_stream(case):
    """20 global batches of consecutive windows of one stream, cut into documents of uneven length."""
    count = STEPS * BATCH * TOKENS + 1
    # Half of the places hold one of 8 ids: something to learn within 20 steps.
    ids = random_ids("training", case, count=1, length=count)[0]
    common = torch.rand(count, generator=generator("common", case)) < 0.5
    ids[common] = ids[common] % 8
    lengths = [1, 36, 37, 38, 75, 200, 5, 111]
    cuts = numpy.cumsum(lengths)
    return ids, numpy.split(ids.numpy(), cuts)


def count_choices(model):
    """Of each router: how often each expert has been chosen since the counts were cleared."""
    counts = {}

    def add(router, _, output):
        counts.setdefault(router, torch.zeros(router.num_experts, dtype=torch.int64))
        counts[router] += torch.bincount(output[2].reshape(-1), minlength=router.num_experts)

    for module in model.modules():
        if hasattr(module, "e_score_correction_bias"):
            module.register_forward_hook(add)
    return counts


def train(model, ids, clip, bias_rate):
    counts = count_choices(model)
    decays = {name: p.dim() >= 2 and not name.endswith("_bias") for name, p in model.named_parameters()}
    groups = [{"params": [p for name, p in model.named_parameters() if decays[name]],
               "weight_decay": RECIPE["weight_decay"]},
              {"params": [p for name, p in model.named_parameters() if not decays[name]], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=tuple(RECIPE["betas"]), eps=RECIPE["eps"])
    losses, norms, rates = [], [], []
    for k in range(1, STEPS + 1):
        rates.append(learning_rate(k))
        for group in optimizer.param_groups:
            group["lr"] = rates[-1]
        start = (k - 1) * BATCH * TOKENS
        count = BATCH * TOKENS
        inputs = ids[start:start + count].view(BATCH, TOKENS)
        targets = ids[start + 1:start + 1 + count].view(BATCH, TOKENS)
        _, loss, _ = loss_and_gradients(model, inputs, targets)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        for router, count in counts.items():
            direction = torch.sign(count.sum() - count * len(count))
            router.e_score_correction_bias += bias_rate * direction
            count.zero_()
        losses.append(loss)
        norms.append(norm.item())
    return losses, norms, rates, {**dict(model.named_parameters()),
                                  **{name: b for name, b in model.named_buffers() if "e_score" in name}}


def value_of(parameters, name):
    """By its name in a file: in memory the experts of a layer are one tensor, gates above what they let pass."""
    name = name.replace("block_sparse_moe", "mlp")
    if name.endswith("]") or name.endswith("].gate") or name.endswith("].up"):  # gpt_oss's: checkpoint/tensor_parts.h
        stored, _, rest = name.partition("[")
        index, _, columns = rest.partition("]")
        part = parameters[stored][int(index)]
        part = {"": part, ".gate": part[..., ::2], ".up": part[..., 1::2]}[columns]
        return part.T if part.dim() == 2 else part
    experts, of, expert = name.partition(".experts.")
    if not of:
        return parameters[name]
    index, projection = expert.split(".")[:2]
    if projection in ("w2", "down_proj"):
        return parameters[f"{experts}.experts.down_proj"][int(index)]
    gate, up = parameters[f"{experts}.experts.gate_up_proj"][int(index)].chunk(2)
    return gate if projection in ("w1", "gate_proj") else up


def run_config(case):
    """The same training as a config of the program, for a working directory at the root of the tree."""
    return {
        "run": {"directory": f"runs/golden-{case}", "steps": STEPS, "resume": "never"},
        "init": {"weights": f"tests/golden/model/{case}"},
        "data": {"train": f"tests/golden/training/{case}/tokens", "sequence_length": TOKENS,
                 "order": "sequential"},
        "batch": {"global": BATCH},
        "optimizer": {"lr": RECIPE["lr"], "betas": RECIPE["betas"], "eps": RECIPE["eps"],
                      "weight_decay": RECIPE["weight_decay"], "clip_grad_norm": CLIP[case]},
        "lr_schedule": {"kind": "cosine", "warmup_steps": WARMUP, "min_lr": RECIPE["min_lr"]},
        **({"moe": {"bias_rate": BIAS_RATE[case]}} if case in BIAS_RATE else {}),
    }


def make_training(root, case):
    folder = root / case
    folder.mkdir(parents=True, exist_ok=True)
    config, state = load_case(case)
    ids, documents = training_stream(case)
    with strict_double():
        losses, norms, rates, parameters = train(build_double(config, state), ids, CLIP[case], BIAS_RATE.get(case, 0))
    write_token_file(folder / "tokens", documents)
    write_json(folder / "expected.json", {
        "model": case, **RECIPE, "clip_grad_norm": CLIP[case], **({"bias_rate": BIAS_RATE[case]} if case in BIAS_RATE else {}),
        "losses": losses, "grad_norms": norms, "learning_rates": rates,
        "final_norms": {n: p.detach().norm().item() for n, p in parameters.items()}})
    (folder / "config.json").write_text(json.dumps(run_config(case), indent=2) + "\n")
    kept = {name: value_of(parameters, name).detach().contiguous() for name in TRAINED[case]}
    save_file(kept, folder / "final.safetensors")
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    model.set_experts_implementation("eager")
    model.load_state_dict(state)
    fp32_losses, _, _, _ = train(model, ids, CLIP[case], BIAS_RATE.get(case, 0))
    worst = max(abs(a - b) / b for a, b in zip(fp32_losses, losses))
    clipped = sum(norm > CLIP[case] for norm in norms)
    print(f"{case}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, {clipped} of {STEPS} steps clip, "
          f"norms {min(norms):.2f} to {max(norms):.2f}; fp32 losses off by {worst:.1e}")


def document_batch(case):
    """Rows cut at uneven places: a document of one token, one cut by the window's end, one whole row."""
    ids = random_ids("documents", case, length=TOKENS + 1)
    starts = [[0, 1, 8, 22], [0], [0, 13, 14, 15, 36]]
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), starts


def document_inputs(starts):
    """Position within the document, and the additive mask: 0 where both stand in one document."""
    positions = torch.empty(BATCH, TOKENS, dtype=torch.long)
    documents = torch.empty(BATCH, TOKENS, dtype=torch.long)
    for row, row_starts in enumerate(starts):
        for document, (start, end) in enumerate(zip(row_starts, row_starts[1:] + [TOKENS])):
            positions[row, start:end] = torch.arange(end - start)
            documents[row, start:end] = document
    same = documents[:, :, None] == documents[:, None, :]
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    return positions, (same & causal)[:, None]


def additive(allowed, dtype):
    mask = torch.zeros(allowed.shape, dtype=dtype)
    return mask.masked_fill(~allowed, torch.finfo(dtype).min)


def make_document_mask(root, case):
    folder = root / case
    folder.mkdir(parents=True, exist_ok=True)
    config, state = load_case(case)
    ids, targets, starts = document_batch(case)
    positions, allowed = document_inputs(starts)
    with strict_double():
        model = build_double(config, state)
        inputs = {"position_ids": positions, "attention_mask": additive(allowed, torch.float64)}
        logits, loss, gradients = loss_and_gradients(model, ids, targets, **inputs)
        # The same thing said differently: every document run on its own.
        for row, row_starts in enumerate(starts):
            for start, end in zip(row_starts, row_starts[1:] + [TOKENS]):
                alone = model(input_ids=ids[row:row + 1, start:end], use_cache=False).logits[0]
                assert (alone - logits[row, start:end]).abs().max() < 1e-12
    write_json(folder / "batch.json", {
        "model": case, "input_ids": ids.tolist(), "targets": targets.tolist(),
        "document_starts": starts, "position_ids": positions.tolist()})
    write_expected(folder, config, logits, loss, gradients)
    inputs["attention_mask"] = additive(allowed, torch.float32)
    fp32_loss, worst = fp32_errors(config, state, ids, targets, gradients, **inputs)
    print(f"document mask, {case}: loss {loss:.15f}, fp32 off by {abs(fp32_loss - loss) / loss:.1e}; "
          f"worst gradient at {worst[0]:.2f} of the tolerance ({worst[1]})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=HERE)
    parser.add_argument("--only")
    arguments = parser.parse_args()
    for case in TRAINED:
        if arguments.only not in (None, case):
            continue
        make_training(arguments.output / "training", case)
    for case in MASKED if arguments.only is None else ():
        make_document_mask(arguments.output / "document_mask", case)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
