#!/usr/bin/env python3
"""Writes fp8/ and fp8_experts/: loss and gradients of a Llama and of a Mixtral whose layers' products take fp8
operands of torch's own types; of an expert's rows as of a tensor of their own.

All is computed in float64 and rounded to bf16 where a model that computes in bf16 stores a tensor, so that
what is quantised has the bits that it has in the program. Weights follow from `weight` below, gradients are
given as each STRIDE-th element.

usage: make_fp8_golden.py [--output DIR] [--only fp8|fp8_experts] [--compare]

--compare also says how far from each case other computations are: what the test's bounds must tell apart.
"""

import argparse
import itertools
import json
import pathlib

import numpy
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, MixtralConfig
from transformers.models.llama import modeling_llama
from transformers.models.mixtral import modeling_mixtral

from make_model_golden import generator, write_json
from strict_double import build_double, strict_double

HERE = pathlib.Path(__file__).resolve().parent
SEQUENCES, TOKENS, VOCAB, STRIDE, BLOCK = {"llama": 3, "mixtral": 5}, 47, 64, 61, 128
STREAMS = {"llama": "fp8", "mixtral": "fp8 experts 3"}
MARGIN = 2e-3
FORMATS = {"e4m3": (torch.float8_e4m3fn, 448.0), "e5m2": (torch.float8_e5m2, 57344.0)}
# recipe, format of gradients, first and last layers in bf16
CASES = [("tensor", "e5m2", (0, 1)), ("tensor", "e4m3", (1, 0)), ("block", "e4m3", (0, 1)),
         ("block", "e5m2", (1, 0))]
SIZES = dict(
    vocab_size=VOCAB, hidden_size=144, intermediate_size=208, num_hidden_layers=2, num_attention_heads=3,
    num_key_value_heads=1, head_dim=48, max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10000.0)
LLAMA = dict(model_type="llama", **SIZES, attention_bias=True, tie_word_embeddings=False)
MIXTRAL = dict(model_type="mixtral", **SIZES, num_local_experts=3, num_experts_per_tok=2, tie_word_embeddings=False)


def name_of(recipe, gradients, bf16_layers):
    return f"{recipe}_{gradients}_{bf16_layers[0]}{bf16_layers[1]}"


def weight(name, shape):
    """From a hash of the name and the place. Linear weights of layers have more bits than a bf16, all else is
    one. What layers add to the residual stream is small beside it: a number that is rounded the other way
    somewhere then changes few of those that are quantised later."""
    seed = 2166136261
    for byte in name.encode():
        seed = (seed ^ byte) * 16777619 % 2**32
    h = (numpy.arange(numpy.prod(shape), dtype=numpy.uint64) * 0x9E3779B9 + seed) % 2**32
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h = (h ^ (h >> shift)) * factor % 2**32
    high = h >> 16
    if name.startswith("model.layers") and len(shape) == 2:
        value = (((h & 0xFFFF) + high).astype(float) / 65536 - 1) * (5 + seed % 7) / 32
        if "o_proj" in name or "down_proj" in name or "w2" in name:
            value = value / 256
    elif name.endswith("norm.weight"):
        value = 0.75 + (h >> 27).astype(float) / 32
    else:
        value = ((h >> 25).astype(float) - 64) / (512 if name == "lm_head.weight" else 128)
    return torch.from_numpy(value.reshape(shape))


NOISE = 0.0


def bf16(x):
    if NOISE:
        x = x * (1 + NOISE * torch.randn(x.shape, generator=generator("noise"), dtype=x.dtype))
    return x.to(torch.float32).to(torch.bfloat16).to(torch.float64)


class Store(torch.autograd.Function):
    """What a tensor and its gradient are in memory."""

    @staticmethod
    def forward(context, x):
        return bf16(x)

    @staticmethod
    def backward(context, dx):
        return bf16(dx)


class StoreGradient(torch.autograd.Function):
    """Logits stay in fp32, their gradient does not."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, dx):
        return bf16(dx)


store = Store.apply


def quantised(x, rows, columns, format):
    """The values that fp8 codes of a matrix stand for, with a scale for each block of rows x columns."""
    dtype, largest = FORMATS[format]
    x = x.to(torch.float32)
    out = torch.empty_like(x)
    for r, c in itertools.product(range(0, x.shape[0], rows), range(0, x.shape[1], columns)):
        block = x[r:r + rows, c:c + columns]
        most = block.abs().max()
        scale = torch.tensor(largest, dtype=torch.float32) / most if most > 0 else torch.tensor(1.0, dtype=torch.float32)
        codes = (block * scale).clamp(-largest, largest).to(dtype)
        out[r:r + rows, c:c + columns] = codes.to(torch.float32)
        out[r:r + rows, c:c + columns] *= 1 / scale
    return out.to(torch.float64)


class Recipe:
    """Blocks of each operand: x and dy along their rows and along their columns, W."""

    def __init__(self, recipe, gradients, forward="e4m3"):
        everything = (2**30, 2**30)
        of_blocks = recipe == "block"
        self.along = (1, BLOCK) if of_blocks else everything
        self.across = (BLOCK, 1) if of_blocks else everything
        self.weight = (BLOCK, BLOCK) if of_blocks else everything
        self.gradients, self.forward = gradients, forward


class Product(torch.autograd.Function):
    @staticmethod
    def forward(context, x, w, recipe):
        context.save_for_backward(x, w)
        context.recipe = recipe
        return quantised(x, *recipe.along, recipe.forward) @ quantised(w, *recipe.weight, recipe.forward).T

    @staticmethod
    def backward(context, dy):
        x, w = context.saved_tensors
        recipe = context.recipe
        dx = quantised(dy, *recipe.along, recipe.gradients) @ quantised(w, *recipe.weight, recipe.forward)
        dw = (quantised(dy, *recipe.across, recipe.gradients).T @
              quantised(x, *recipe.across, recipe.forward))
        return dx, dw, None


class Bf16Product(torch.autograd.Function):
    """The weight's copy is rounded; its gradient is an fp32."""

    @staticmethod
    def forward(context, x, w, _):
        context.save_for_backward(x, w)
        return x @ bf16(w).T

    @staticmethod
    def backward(context, dy):
        x, w = context.saved_tensors
        return dy @ bf16(w), dy.T @ x, None


def linear_of(module, recipe, store=store):
    product = Bf16Product if recipe is None else Product

    def forward(x):
        y = product.apply(x.flatten(0, -2), module.weight, recipe)
        if module.bias is not None:
            y = y + module.bias
        return store(y).view(*x.shape[:-1], -1)

    return forward


class Experts:
    """Mixtral's, with weights by the names of its files."""

    margins = []  # between the last logit that is chosen and the next

    def __init__(self, prefix, state, chosen, recipe):
        self.weights = {name: tensor.double().requires_grad_() for name, tensor in state.items()
                        if name.startswith(prefix)}
        self.prefix, self.chosen, self.recipe = prefix, chosen, recipe

    def linear(self, x, name):
        product = Bf16Product if self.recipe is None or name == "gate" else Product
        return product.apply(x, self.weights[f"{self.prefix}{name}.weight"], self.recipe)

    def __call__(self, hidden_states):
        n = hidden_states.flatten(0, -2)
        # Its logits are an fp32; what it adds to n's gradient is rounded before experts' is added.
        logits = StoreGradient.apply(self.linear(StoreGradient.apply(n), "gate"))
        best = torch.topk(logits, self.chosen + 1, dim=-1)
        Experts.margins.append((best.values[:, -2] - best.values[:, -1]).min().item())
        chosen = best.indices[:, :-1]
        weights = torch.softmax(best.values[:, :-1], dim=-1)
        out = torch.zeros_like(n)
        most = 0
        for expert in range(logits.shape[1]):
            token, slot = torch.where(chosen == expert)
            most = max(most, len(token))
            rows = StoreGradient.apply(n[token])
            gate, up = (store(self.linear(rows, f"experts.{expert}.{name}")) for name in ("w1", "w3"))
            h = store(weights[token, slot, None] * torch.nn.functional.silu(gate) * up)
            out = out.index_add(0, token, store(self.linear(h, f"experts.{expert}.w2")))
        assert most > BLOCK, "no expert has more than a block of rows"
        return store(out).view(hidden_states.shape)


def layer_forward(layer):
    """transformers' decoder layer with its sums stored."""

    def forward(hidden_states, **inputs):
        inputs["use_cache"] = False
        attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **inputs)
        hidden_states = store(hidden_states + attended)
        return store(hidden_states + layer.mlp(layer.post_attention_layernorm(hidden_states)))

    return forward


def store_output(module, inputs, output):
    return store(output)


def store_input(module, inputs):
    return (store(inputs[0]),)


def rotary_stored(rotate):
    def stored(*arguments, **keys):
        q, k = rotate(*arguments, **keys)
        return store(q), store(k)

    return stored


def prepare(model, state, recipe, bf16_layers):
    """All weights by name."""
    layers = model.model.layers
    weights = dict(model.named_parameters())
    for index, layer in enumerate(layers):
        layer.forward = layer_forward(layer)
        in_bf16 = index < bf16_layers[0] or index >= len(layers) - bf16_layers[1]
        experts = hasattr(layer.mlp, "experts")
        if experts:
            weights = {n: w for n, w in weights.items() if not n.startswith(f"model.layers.{index}.mlp.")}
            layer.mlp.forward = Experts(f"model.layers.{index}.block_sparse_moe.", state, layer.mlp.top_k,
                                        None if in_bf16 else recipe)
            weights.update(layer.mlp.forward.weights)
        for module in layer.modules():
            if isinstance(module, torch.nn.Linear):
                module.forward = linear_of(module, None if in_bf16 else recipe)
        # Where one tensor is read by several products its gradient is rounded once.
        for module in (layer.input_layernorm, layer.post_attention_layernorm):
            module.register_forward_hook(store_output)
        for module in (layer.self_attn.o_proj, *([] if experts else [layer.mlp.down_proj])):
            module.register_forward_pre_hook(store_input)
    model.lm_head.forward = linear_of(model.lm_head, None, StoreGradient.apply)
    for module in (model.model.embed_tokens, model.model.norm):
        module.register_forward_hook(store_output)
    return weights


def run(state, config, ids, targets, recipe, bf16_layers, noise=0.0):
    """`noise`: how far, relative to it, a number is off before it is stored."""
    global NOISE
    NOISE = noise
    modeling = MODELING[config.model_type]
    rotate = modeling.apply_rotary_pos_emb
    modeling.apply_rotary_pos_emb = rotary_stored(rotate)
    try:
        with strict_double():
            model = build_double(config, fused(config, state))
        weights = prepare(model, state, recipe, bf16_layers)
        with strict_double():
            logits = model(input_ids=ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        return loss.item(), {name: p.grad.flatten()[::STRIDE].clone() for name, p in weights.items()}
    finally:
        modeling.apply_rotary_pos_emb = rotate


def distance(found, expected, bf16_layers):
    """Of the matrices of the layer in fp8, on average, relative to each."""
    layer = f"layers.{bf16_layers[0]}."
    each = [((found[n] - g).norm() / g.norm()).item() for n, g in expected.items()
            if layer in n and (n.endswith("proj.weight") or ".experts." in n)]
    return sum(each) / len(each)


MODELING = {"llama": modeling_llama, "mixtral": modeling_mixtral}


def fused(config, state):
    """As transformers holds them."""
    if config.model_type == "llama":
        return state
    out = {name: tensor for name, tensor in state.items() if "block_sparse_moe" not in name}
    for layer in range(config.num_hidden_layers):
        here = f"model.layers.{layer}.block_sparse_moe."
        each = [[state[f"{here}experts.{e}.{w}.weight"] for w in ("w1", "w3", "w2")]
                for e in range(config.num_local_experts)]
        to = f"model.layers.{layer}.mlp."
        out[to + "gate.weight"] = state[here + "gate.weight"]
        out[to + "experts.gate_up_proj"] = torch.stack([torch.cat(of[:2]) for of in each])
        out[to + "experts.down_proj"] = torch.stack([of[2] for of in each])
    return out


def shapes_of(config):
    with torch.device("meta"):
        model = {"llama": modeling_llama.LlamaForCausalLM, "mixtral": modeling_mixtral.MixtralForCausalLM}
        shapes = {n: tuple(p.shape) for n, p in model[config.model_type](config).named_parameters()
                  if ".mlp." not in n or config.model_type == "llama"}
    if config.model_type == "mixtral":
        hidden, ffn = config.hidden_size, config.intermediate_size
        for layer in range(config.num_hidden_layers):
            here = f"model.layers.{layer}.block_sparse_moe."
            shapes[here + "gate.weight"] = (config.num_local_experts, hidden)
            for expert in range(config.num_local_experts):
                for name in ("w1", "w3"):
                    shapes[f"{here}experts.{expert}.{name}.weight"] = (ffn, hidden)
                shapes[f"{here}experts.{expert}.w2.weight"] = (hidden, ffn)
    return shapes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=HERE)
    parser.add_argument("--only", choices=("fp8", "fp8_experts"))
    parser.add_argument("--compare", action="store_true")
    arguments = parser.parse_args()
    for name, of, keys in (("fp8", LlamaConfig, LLAMA), ("fp8_experts", MixtralConfig, MIXTRAL)):
        if arguments.only in (None, name):
            write(arguments.output / name, of(**{k: v for k, v in keys.items() if k != "model_type"}), keys,
                  arguments.compare)


def write(output, config, keys, compare):
    output.mkdir(parents=True, exist_ok=True)
    state = {name: weight(name, shape).float() for name, shape in shapes_of(config).items()}
    sequences = SEQUENCES[config.model_type]
    stream = torch.randint(0, VOCAB, (sequences, TOKENS + 1), generator=generator("ids", STREAMS[config.model_type]))
    ids, targets = stream[:, :-1].contiguous(), stream[:, 1:].contiguous()
    tensors, cases = {}, []
    for recipe, gradients, bf16_layers in CASES:
        Experts.margins.clear()
        loss, found = run(state, config, ids, targets, Recipe(recipe, gradients), bf16_layers)
        assert min(Experts.margins, default=1) > MARGIN, f"{Experts.margins}: rounding may change a choice"
        name = name_of(recipe, gradients, bf16_layers)
        cases.append({"name": name, "recipe": recipe, "gradients": gradients, "bf16_layers": bf16_layers,
                      "loss": loss})
        tensors.update({f"{name}/{n}": g.float().contiguous() for n, g in found.items()})
        print(f"{name}: loss {loss:.6f}")
        if compare:
            others = {"bf16": None, **{f"{r} {f}": Recipe(r, f) for r in ("tensor", "block") for f in FORMATS},
                      "x and W in e5m2, dy in e4m3": Recipe(recipe, "e4m3", "e5m2")}
            for other, of in others.items():
                _, gradients_of = run(state, config, ids, targets, of, bf16_layers)
                print(f"  {other}: gradients {distance(gradients_of, found, bf16_layers):.4f}")
            _, gradients_of = run(state, config, ids, targets, Recipe(recipe, gradients), bf16_layers, 1e-7)
            print(f"  itself, with sums off by 1e-7: {distance(gradients_of, found, bf16_layers):.4f}")
    save_file(tensors, output / "expected.safetensors")
    write_json(output / "cases.json", {
        "config": keys, "sequences": sequences, "tokens": TOKENS, "stride": STRIDE, "cases": cases,
        "input_ids": ids.tolist(), "targets": targets.tolist()})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
