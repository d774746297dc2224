#!/usr/bin/env python3
"""Writes adapter_training/: 20 AdamW steps of peft's adapters in float64, beside frozen weights.

usage: make_adapter_training_golden.py [--output DIR] [--only CASE]

Models and tokens are those of training/.
"""

import argparse
import pathlib

import numpy
import torch
import xxhash
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

from cases import BATCH, TOKENS
from make_model_golden import HERE, generator, load_case, write_json
from make_training_golden import BIAS_RATE, RECIPE, STEPS, learning_rate, training_stream
from strict_double import build_double, strict_double

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]
# name -> model, clipping, LoraConfig's arguments
CASES = {
    "llama_lora": ("llama_gqa", 0.8, dict(r=4, lora_alpha=8, target_modules=ALL)),
    "llama_rslora": ("llama_gqa", 1.0, dict(r=6, lora_alpha=6, use_rslora=True,
                                            target_modules=["q_proj", "v_proj", "up_proj", "down_proj"])),
    "llama_dora": ("llama_gqa", 1.0, dict(r=3, lora_alpha=6, use_dora=True, target_modules=ALL)),
    "llama_dropout": ("llama_gqa", 1.0, dict(r=4, lora_alpha=8, lora_dropout=0.3, target_modules=ALL)),
    "llama_head_lora": ("llama_gqa", 1.0, dict(r=4, lora_alpha=8, lora_dropout=0.3,
                                               target_modules=["q_proj", "lm_head"])),
    "llama_head_dora": ("llama_gqa", 1.0, dict(r=3, lora_alpha=6, use_dora=True,
                                               target_modules=["q_proj", "lm_head"])),
    "olmoe_head_alone": ("olmoe", 0.5, dict(r=5, lora_alpha=5, use_rslora=True, target_modules=["lm_head"])),
    "gpt2_lora": ("gpt2", 1.0, dict(r=2, lora_alpha=3, fan_in_fan_out=True,
                                    target_modules=["c_attn", "attn.c_proj", "c_fc"])),
    "qwen3_moe_lora": ("qwen3_moe", 1.0, dict(r=2, lora_alpha=4, target_modules=ALL[:4])),
    "qwen3_moe_experts": ("qwen3_moe", 1.0, dict(r=3, lora_alpha=4, use_rslora=True, target_modules=["q_proj"],
                                                 target_parameters=EXPERTS)),
    "gpt_oss_experts": ("gpt_oss", 1.0, dict(r=2, lora_alpha=3, target_modules=[], target_parameters=EXPERTS)),
    "mixtral_down": ("mixtral", 1.0, dict(r=2, lora_alpha=4, target_modules=[], target_parameters=EXPERTS[1:])),
    "deepseek_lora": ("deepseek_v3", 1.0, dict(r=2, lora_alpha=4, target_modules=[
        "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"])),
}
PREFIX = "base_model.model."


def adapters_of(model):
    """By the names of their files."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            name = name.removeprefix(PREFIX).replace(".default", "")
            found[name.removesuffix(".weight") if "magnitude" in name else name] = parameter
    return found


def philox(key, samples, positions, columns):
    """[tokens, columns]: 16 bits of Philox-4x32-10 for each, as kernels/dropout/dropout.h has it."""
    groups = numpy.arange((columns + 7) // 8, dtype=numpy.uint64)
    shape = (len(samples), len(groups))
    low = numpy.uint64(0xFFFFFFFF)
    words = [numpy.broadcast_to(w, shape).copy() for w in (
        positions[:, None].astype(numpy.uint64), samples[:, None].astype(numpy.uint64),
        groups[None] & low, groups[None] >> numpy.uint64(32))]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = numpy.uint64(0xD2511F53) * words[0], numpy.uint64(0xCD9E8D57) * words[2]
        words = [(p1 >> numpy.uint64(32)) ^ words[1] ^ numpy.uint64(k0), p1 & low,
                 (p0 >> numpy.uint64(32)) ^ words[3] ^ numpy.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    halves = [part for w in words for part in (w & numpy.uint64(0xFFFF), w >> numpy.uint64(16))]
    return numpy.stack(halves, axis=-1).reshape(len(samples), -1)[:, :columns]


class ChosenDropout(torch.nn.Module):
    """In place of peft's, whose choice is a generator's: that of our numbers, which projections of one
    product share."""

    def __init__(self, share, stream):
        super().__init__()
        self.dropped, self.stream, self.samples = round(share * 65536), stream, None

    def forward(self, x):
        rows, tokens, columns = x.shape
        samples = numpy.repeat(self.samples, tokens)
        numbers = philox(self.stream, samples, numpy.tile(numpy.arange(tokens), rows), columns)
        kept = torch.from_numpy((numbers >= self.dropped).reshape(rows, tokens, columns))
        return x * kept * (65536 / (65536 - self.dropped))


SEED = 1234  # run.seed
FIRST_OF_PRODUCT = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}


def choose_dropout(model, share):
    """Those of all adapters, to be told the samples of each step."""
    key = xxhash.xxh3_64_intdigest(b"lora.dropout", SEED)
    chosen = []
    for name, module in model.named_modules():
        if not hasattr(module, "lora_dropout"):
            continue
        path, dot, projection = name.removeprefix(PREFIX).rpartition(".")
        first = f"{path}{dot}{FIRST_OF_PRODUCT.get(projection, projection)}.lora_A.weight"
        chosen.append(ChosenDropout(share, xxhash.xxh3_64_intdigest(first.encode(), key)))
        module.lora_dropout["default"] = chosen[-1]
    return chosen


def begin(model, name):
    """peft begins with B = 0, whose first step has no gradient of A: here neither is 0."""
    random = generator("adapters", name)
    with torch.no_grad():
        for adapter, parameter in adapters_of(model).items():
            if "magnitude" in adapter:
                parameter.mul_(1 + 0.1 * torch.randn(parameter.shape, generator=random, dtype=torch.float64))
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=random).to(torch.float32) * 0.2)


def train(model, ids, clip, dropouts):
    decays = {name: p.dim() >= 2 for name, p in adapters_of(model).items()}
    trained = adapters_of(model)
    optimizer = torch.optim.AdamW(
        [{"params": [p for n, p in trained.items() if decays[n]], "weight_decay": RECIPE["weight_decay"]},
         {"params": [p for n, p in trained.items() if not decays[n]], "weight_decay": 0.0}],
        lr=0.0, betas=tuple(RECIPE["betas"]), eps=RECIPE["eps"])
    losses, norms = [], []
    for k in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(k)
        start, count = (k - 1) * BATCH * TOKENS, BATCH * TOKENS
        inputs = ids[start:start + count].view(BATCH, TOKENS)
        targets = ids[start + 1:start + 1 + count].view(BATCH, TOKENS)
        optimizer.zero_grad()
        for dropout in dropouts:
            dropout.samples = numpy.arange((k - 1) * BATCH, k * BATCH)
        logits = model(input_ids=inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(list(trained.values()), clip).item())
        losses.append(loss.item())
        optimizer.step()
    return losses, norms


def make(root, name):
    case, clip, arguments = CASES[name]
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    config, state = load_case(case)
    ids, _ = training_stream(case)
    with strict_double():
        base = build_double(config, state)
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **arguments),
                               autocast_adapter_dtype=False).double()
        model.eval()
        begin(model, name)
        first = {PREFIX + n: p.detach().to(torch.float32).contiguous().clone()
                 for n, p in adapters_of(model).items()}
        with torch.no_grad():  # what the file holds
            for n, p in adapters_of(model).items():
                p.copy_(first[PREFIX + n].double())
        share = arguments.get("lora_dropout", 0.0)
        losses, norms = train(model, ids, clip, choose_dropout(model, share) if share else [])
    save_file(first, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    save_file({n: p.detach().float().contiguous() for n, p in adapters_of(model).items()},
              folder / "final.safetensors")
    model.peft_config["default"].base_model_name_or_path = case
    model.peft_config["default"].save_pretrained(folder)
    write_json(folder / "expected.json", {
        "model": case, **RECIPE, "clip_grad_norm": clip,
        "rank": arguments["r"], "alpha": arguments["lora_alpha"],
        "rslora": arguments.get("use_rslora", False), "dora": arguments.get("use_dora", False),
        **({"dropout": share} if share else {}),
        "targets": arguments["target_modules"] + arguments.get("target_parameters", []),
        "losses": losses, "grad_norms": norms})
    print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, norms {min(norms):.2f} to {max(norms):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "adapter_training")
    parser.add_argument("--only")
    arguments = parser.parse_args()
    for name in CASES:
        if arguments.only in (None, name):
            make(arguments.output, name)


if __name__ == "__main__":
    main()
