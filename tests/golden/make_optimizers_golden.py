#!/usr/bin/env python3
"""Writes optimizers/: 20 steps in float64 of what is not plain AdamW, over the tokens of training/.

usage: make_optimizers_golden.py [--output DIR] [--only CASE]
"""

import argparse
import contextlib
import pathlib
import re

import torch
from lion_pytorch import Lion
from safetensors.torch import save_file
from schedulefree import AdamWScheduleFree
from torch.overrides import TorchFunctionMode

from cases import BATCH, TOKENS
from make_model_golden import HERE, load_case, write_json
from make_training_golden import RECIPE, STEPS, WARMUP, learning_rate, training_stream
from strict_double import build_double, strict_double

# case -> model, the section `optimizer` of our config beside the recipe's, the tensors that are kept
CASES = {
    "groups": ("llama_gqa", {
        "ema": 0.9,
        "groups": [
            {"match": "embed_tokens", "trainable": False},
            {"match": "layers.0.*norm", "lr_scale": 0.25, "weight_decay": 0.3},
            {"match": "?_proj.weight", "weight_decay": 0},
            {"match": "layers", "lr_scale": 2},
        ]},
        ("model.layers.0.input_layernorm.weight", "model.layers.1.input_layernorm.weight",
         "model.layers.1.self_attn.k_proj.weight", "model.norm.weight")),
    "groups_tied": ("gpt2", {
        "groups": [{"match": "wte", "trainable": False}, {"match": "ln_", "trainable": False},
                   {"match": "c_attn.weight", "trainable": False}]},
        ("transformer.h.1.mlp.c_proj.bias", "transformer.h.0.mlp.c_fc.bias", "transformer.wpe.weight")),
    "lion": ("llama_gqa", {
        "kind": "lion", "lr": 1e-4, "betas": [0.9, 0.99],
        "groups": [{"match": "mlp", "lr_scale": 0.5}]},
        ("model.norm.weight", "model.layers.0.input_layernorm.weight",
         "model.layers.1.self_attn.k_proj.weight")),
    "schedule_free": ("llama_gqa", {
        "kind": "schedule-free", "lr": 2e-3,
        "groups": [{"match": "mlp", "lr_scale": 0.5}]},
        ("model.norm.weight", "model.layers.0.input_layernorm.weight",
         "model.layers.1.self_attn.k_proj.weight")),
    "muon": ("llama_gqa", {
        "kind": "muon", "matrix_lr": 3e-3,
        "groups": [{"match": "mlp", "lr_scale": 0.5, "weight_decay": 0.2}]},
        ("model.norm.weight", "model.layers.0.mlp.down_proj.weight", "model.layers.1.self_attn.k_proj.weight")),
    "muon_gpt2": ("gpt2", {"kind": "muon"},
                  ("transformer.wpe.weight", "transformer.h.0.attn.c_attn.weight", "transformer.h.1.mlp.c_proj.weight",
                   "transformer.h.1.mlp.c_proj.bias")),
    "muon_bf16": ("llama_gqa", {"kind": "muon", "matrix_lr": 3e-3},
                  ("model.layers.0.mlp.down_proj.weight", "model.layers.1.self_attn.k_proj.weight")),
    "adafactor": ("llama_gqa", {
        "kind": "adafactor", "lr": 2e-2,
        "groups": [{"match": "mlp", "lr_scale": 0.5}]},
        ("model.norm.weight", "model.layers.0.input_layernorm.weight",
         "model.layers.1.self_attn.k_proj.weight")),
}
# PyTorch orthogonalises in bf16 whatever the type of a gradient; elsewhere all is float64 here.
ROUNDED = ("muon_bf16",)
CLIP = 1.0


class _NoRounding(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **{key: torch.float64 if value is torch.bfloat16 else value
                                  for key, value in (kwargs or {}).items()})


def is_matrix(name, parameter):
    """Of a layer's products, none of which chooses experts."""
    return parameter.dim() == 2 and re.search(r"\.(layers|h)\.\d+\.", name) is not None


class Together:
    """Several optimizers as one."""

    def __init__(self, *optimizers):
        self.optimizers = [each for each in optimizers if each is not None]
        self.param_groups = [group for each in self.optimizers for group in each.param_groups]

    def step(self):
        for each in self.optimizers:
            each.step()


def group_of(section, name):
    """The first whose pattern stands somewhere in the name: * is any letters, ? one."""
    for group in section.get("groups", []):
        pattern = re.escape(group["match"]).replace(r"\*", ".*").replace(r"\?", ".")
        if re.search(pattern, name):
            return group
    return {}


def make_optimizer(model, section):
    groups, matrices = [], []
    muon = section.get("kind") == "muon"
    lr = section.get("lr", RECIPE["lr"])
    matrix_scale = section.get("matrix_lr", lr) / lr
    for name, parameter in model.named_parameters():
        group = group_of(section, name)
        parameter.requires_grad_(group.get("trainable", True))
        if parameter.requires_grad:
            decay = RECIPE["weight_decay"] if parameter.dim() >= 2 else 0.0
            whole = muon and is_matrix(name, parameter)
            (matrices if whole else groups).append(
                {"params": [parameter], "scale": group.get("lr_scale", 1) * (matrix_scale if whole else 1),
                 "weight_decay": group.get("weight_decay", decay)})
    betas = tuple(section.get("betas", RECIPE["betas"]))
    if section.get("kind") == "lion":
        return Lion(groups, lr=1.0, betas=betas)
    if section.get("kind") == "schedule-free":  # warms up by itself
        for group in groups:
            group["lr"] = section["lr"] * group["scale"]
        return AdamWScheduleFree(groups, betas=betas, eps=RECIPE["eps"], warmup_steps=WARMUP)
    if section.get("kind") == "adafactor":  # the least variance is that of fp32
        return torch.optim.Adafactor(groups, lr=0.0, eps=(torch.finfo(torch.float32).eps, 1e-3))
    adamw = torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=RECIPE["eps"])
    if not muon:
        return adamw
    return Together(torch.optim.Muon(matrices, lr=0.0, momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw"),
                    adamw)


def train(model, ids, section):
    optimizer = make_optimizer(model, section)
    alone = isinstance(optimizer, AdamWScheduleFree)
    if alone:
        optimizer.train()
    scale = section.get("lr", RECIPE["lr"]) / RECIPE["lr"]
    decay = section.get("ema", 0)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    averages = {name: p.detach().clone() for name, p in trained.items()}
    losses, norms, rates = [], [], []
    for k in range(1, STEPS + 1):
        rates.append(section["lr"] * min(1, k / WARMUP) if alone else learning_rate(k) * scale)
        for group in optimizer.param_groups if not alone else []:
            group["lr"] = rates[-1] * group["scale"]
        count = BATCH * TOKENS
        inputs = ids[(k - 1) * count:k * count].view(BATCH, TOKENS)
        targets = ids[(k - 1) * count + 1:k * count + 1].view(BATCH, TOKENS)
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            model(input_ids=inputs, use_cache=False).logits.reshape(count, -1), targets.reshape(count))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(trained.values(), CLIP).item())
        losses.append(loss.item())
        optimizer.step()
        for name, parameter in trained.items():
            averages[name] = decay * averages[name] + (1 - decay) * parameter.detach()
    states = {"ema/" + name: average for name, average in averages.items()} if decay else {}
    if alone:
        optimizer.eval()
    for name, parameter in trained.items():
        for state in ("z", "exp_avg_sq") if alone else ("row_var", "col_var", "variance"):
            if state in optimizer.state[parameter]:
                value = optimizer.state[parameter][state]
                states[f"{state}/{name}"] = value if alone else value.flatten()
    return losses, norms, rates, dict(model.named_parameters()), states


def make_case(root, case):
    of, section, kept = CASES[case]
    folder = root / case
    folder.mkdir(parents=True, exist_ok=True)
    config, state = load_case(of)
    ids, _ = training_stream(of)
    with strict_double():
        with contextlib.nullcontext() if case in ROUNDED else _NoRounding():
            losses, norms, rates, parameters, states = train(build_double(config, state), ids, section)
    rate = section.get("lr", RECIPE["lr"])
    write_json(folder / "expected.json", {
        **RECIPE, "model": of, "lr": rate, "min_lr": RECIPE["min_lr"] * rate / RECIPE["lr"], "clip_grad_norm": CLIP,
        "optimizer": section, "losses": losses, "grad_norms": norms, "learning_rates": rates})
    final = {name: parameters[name].detach().contiguous() for name in kept}
    final |= {name: state.contiguous() for name, state in states.items() if name.split("/", 1)[1] in kept}
    save_file(final, folder / "final.safetensors")
    print(f"{case}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, norms {min(norms):.2f} to {max(norms):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "optimizers")
    parser.add_argument("--only")
    arguments = parser.parse_args()
    for case in CASES:
        if arguments.only in (None, case):
            make_case(arguments.output, case)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
