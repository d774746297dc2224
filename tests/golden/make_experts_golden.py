#!/usr/bin/env python3
"""Writes experts/: a layer of experts as megatron-core computes it, forward and backward.

usage: make_experts_golden.py [--output DIR]

The whole MoELayer (router, token dispatcher, experts) runs on a CPU in float64, on one rank and on
two that share the experts out over gloo, by the all-to-all and the all-gather dispatcher. All four
must agree to 1e-13 before one of them is written; megatron-core in fp32 is printed beside them.
"""

import argparse
import contextlib
import json
import os
import pathlib
import tempfile
import warnings

import numpy
import torch
from safetensors.torch import save_file

from make_model_golden import generator
from strict_double import strict_double

HERE = pathlib.Path(__file__).resolve().parent
SEQUENCES, TOKENS, HIDDEN, FFN, EXPERTS, CHOSEN = 2, 13, 12, 10, 8, 2
# The last chosen expert and the first that is not are this far apart, or fp32 might choose others.
GAP = 1e-3

# `megatron`: arguments of its TransformerConfig. `crowded`: logits that experts have of every token.
CASES = [
    {"name": "softmax_of_chosen", "family": "qwen3_moe", "norm_topk_prob": True, "megatron": {}},
    {"name": "softmax_of_all", "family": "qwen3_moe", "norm_topk_prob": False,
     "crowded": {1: 6.0, 3: -9.0, 6: -9.0}, "aux": 0.5, "z": 0.25, "scope": "sequence",
     "megatron": {"moe_router_pre_softmax": True}},
    {"name": "balanced_over_ranks", "family": "qwen3_moe", "norm_topk_prob": True,
     "crowded": {5: 2.0, 2: -9.0}, "aux": 0.5, "scope": "global", "megatron": {}},
    {"name": "sigmoid_with_groups", "family": "glm4_moe", "aux": 0.5, "z": 0.25, "scope": "sequence",
     "megatron": {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True,
                  "moe_router_num_groups": 2, "moe_router_group_topk": 1,
                  "moe_router_topk_scaling_factor": 2.5}},
]
TYPE_OF_SCOPE = {"sequence": "seq_aux_loss", "global": "global_aux_loss"}


def model_keys(case):
    """config.json of one such layer."""
    keys = {"model_type": case["family"], "vocab_size": 32, "hidden_size": HIDDEN,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
            "head_dim": 8, "intermediate_size": FFN, "moe_intermediate_size": FFN,
            "num_experts_per_tok": CHOSEN, "max_position_embeddings": TOKENS}
    if case["family"] == "glm4_moe":
        return dict(keys, n_routed_experts=EXPERTS, n_group=2, topk_group=1, n_shared_experts=0,
                    first_k_dense_replace=0, norm_topk_prob=True, routed_scaling_factor=2.5)
    return dict(keys, num_experts=EXPERTS, norm_topk_prob=case["norm_topk_prob"])


def numbers(name, *shape, scale):
    """Exact in fp32."""
    normal = torch.randn(shape, generator=generator("experts", name), dtype=torch.float64)
    return (normal * scale).float().double()


def shared_tensors():
    tensors = {"x": numbers("x", SEQUENCES * TOKENS, HIDDEN, scale=1.0),
               "dy": numbers("dy", SEQUENCES * TOKENS, HIDDEN, scale=1.0)}
    tensors["x"][:, 0] = 1  # what a crowded expert's logit is made of
    for e in range(EXPERTS):
        for part, shape in (("gate", (FFN, HIDDEN)), ("up", (FFN, HIDDEN)), ("down", (HIDDEN, FFN))):
            name = f"experts.{e}.{part}_proj.weight"
            tensors[name] = numbers(name, *shape, scale=0.4)
    return tensors


def router_tensors(case):
    weight = numbers(case["name"], EXPERTS, HIDDEN, scale=0.5)
    for expert, logit in case.get("crowded", {}).items():
        weight[expert, 0] = logit
    tensors = {"gate.weight": weight}
    if case["family"] == "glm4_moe":
        bias = torch.tensor([3, -2, 1, 0, -4, 2, 5, -1], dtype=torch.float64) / 32
        tensors["gate.e_score_correction_bias"] = bias
    return tensors


def do_without_cuda():
    """megatron-core asks for a device, streams and Transformer Engine where a CPU needs none."""
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    class Nothing:
        def __init__(self, *arguments, **named):
            pass

        def __getattr__(self, name):
            return lambda *arguments, **named: Nothing()

    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.Stream = torch.cuda.Event = Nothing
    torch.cuda.current_stream = Nothing
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.Tensor.record_stream = lambda *arguments: None
    moe_utils.te_general_gemm = None
    exchange = token_dispatcher.all_to_all

    def integers(sizes):
        return None if sizes is None else [int(size) for size in sizes]

    token_dispatcher.all_to_all = lambda group, x, out=None, into=None, **named: exchange(
        group, x, integers(out), integers(into), **named)


def make_layer(case, dispatcher, world, dtype):
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.moe.moe_layer import MoELayer
    from megatron.core.transformer.transformer_config import TransformerConfig

    options = dict(case["megatron"])
    if "aux" in case:
        options.update(moe_router_load_balancing_type=TYPE_OF_SCOPE[case["scope"]],
                       moe_aux_loss_coeff=case["aux"])
    else:
        options["moe_router_load_balancing_type"] = "none"
    if "z" in case:
        options["moe_z_loss_coeff"] = case["z"]
    config = TransformerConfig(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=2, num_moe_experts=EXPERTS,
        moe_router_topk=CHOSEN, ffn_hidden_size=FFN, moe_ffn_hidden_size=FFN,
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False,
        bias_activation_fusion=False, use_cpu_initialization=True, params_dtype=dtype,
        moe_router_dtype="fp64" if dtype == torch.float64 else "fp32",
        moe_token_dispatcher_type=dispatcher, expert_model_parallel_size=world, **options)
    submodules = get_gpt_layer_local_spec(num_experts=EXPERTS, moe_grouped_gemm=False).submodules
    layer = MoELayer(config, submodules=submodules.mlp.submodules).train()
    layer.set_layer_number(1)
    return layer


def local_expert(name, rank, world):
    """(index among all, whether it is the first product) of a parameter of an expert."""
    index = int(name.split("local_experts.")[1].split(".")[0])
    return index + rank * EXPERTS // world, "linear_fc1" in name


def load(layer, tensors, rank, world):
    for name, parameter in layer.named_parameters():
        if name == "router.weight":
            value = tensors["gate.weight"]
        else:
            expert, first = local_expert(name, rank, world)
            parts = [tensors[f"experts.{expert}.{part}_proj.weight"]
                     for part in (("gate", "up") if first else ("down",))]
            value = torch.cat(parts)
        parameter.data = value.to(parameter.dtype)
    if "gate.e_score_correction_bias" in tensors:
        layer.router.expert_bias.copy_(tensors["gate.e_score_correction_bias"])


def gradients_of(layer, rank, world):
    found = {}
    for name, parameter in layer.named_parameters():
        if name == "router.weight":
            found["dgate.weight"] = parameter.grad
            continue
        expert, first = local_expert(name, rank, world)
        parts = ("gate", "up") if first else ("down",)
        for part, gradient in zip(parts, parameter.grad.chunk(len(parts))):
            found[f"dexperts.{expert}.{part}_proj.weight"] = gradient.contiguous()
    return found


def check_gap(case, scores, chosen):
    """Fails where another rounding of what the choice is made by could choose other experts."""
    if case["family"] == "glm4_moe":
        groups = scores.view(-1, 2, EXPERTS // 2)
        sums = groups.topk(2)[0].sum(-1)
        assert (sums[:, 0] - sums[:, 1]).abs().min() > GAP, case["name"]
        other = sums.argmin(1)[:, None, None].expand(-1, 1, EXPERTS // 2)
        scores = groups.scatter(1, other, -torch.inf).view(-1, EXPERTS)
    least = scores.masked_fill(~chosen, torch.inf).min(1)[0]
    most = scores.masked_fill(chosen, -torch.inf).max(1)[0]
    assert (least - most).min() > GAP, case["name"]


def run_case(case, tensors, dispatcher, rank, world, dtype):
    """What this rank computes: its sequences' rows, sums over its tokens, its experts' gradients."""
    from megatron.core.transformer.moe import moe_utils

    # Losses are means over data ranks there, sums here; the global one is a sum there too.
    scale = 1 / world if case.get("scope") != "global" else 1.0
    moe_utils.MoEAuxLossAutoScaler.set_loss_scale(torch.tensor(scale, dtype=dtype))
    moe_utils.get_moe_layer_wise_logging_tracker().clear()
    layer = make_layer(case, dispatcher, world, dtype)
    load(layer, tensors, rank, world)
    per = SEQUENCES // world

    def mine(name):  # megatron-core's [T, B, C]
        whole = tensors[name].view(SEQUENCES, TOKENS, HIDDEN)[rank * per:(rank + 1) * per]
        return whole.transpose(0, 1).contiguous().to(dtype)

    x = mine("x").requires_grad_()
    seen = {}
    routing = layer.router.routing
    layer.router.routing = lambda logits, **named: seen.setdefault(
        "routed", (logits, routing(logits, **named)))[1]
    y, _ = layer(x)
    y.backward(mine("dy"))
    logits, (probabilities, chosen) = seen["routed"]
    scores = logits.detach().view(-1, EXPERTS)
    if case["family"] == "glm4_moe":
        scores = scores.sigmoid() + layer.router.expert_bias.to(dtype)
    check_gap(case, scores, chosen)
    if dtype == torch.float64:  # and nothing on the way to them was rounded
        exact = probabilities[chosen].detach().numpy()
        assert (exact.astype(numpy.float32) != exact).any(), case["name"]

    def rows(tensor):
        return tensor.detach().transpose(0, 1).reshape(-1, HIDDEN)

    losses = {name: float(of["values"][0]) * scale
              for name, of in moe_utils.get_moe_layer_wise_logging_tracker().items()}
    found = {"y": rows(y), "dx": rows(x.grad), **gradients_of(layer, rank, world),
             "tokens": chosen.sum(0).double(),
             "z_loss": torch.tensor(losses.pop("z_loss", 0.0) * case.get("z", 0.0)),
             "aux_loss": torch.tensor(sum(losses.values()) * case.get("aux", 0.0))}
    assert all(tensor.isfinite().all() for tensor in found.values())
    return {name: tensor.double() for name, tensor in found.items()}


def run_rank(rank, world, folder):
    """Every case on one of `world` ranks, saved in `folder`."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet{world}", rank=rank,
                                         world_size=world)
    do_without_cuda()
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(expert_model_parallel_size=world)
    found = {}
    for case in CASES:
        tensors = dict(shared_tensors(), **router_tensors(case))
        for dispatcher in ("alltoall", "allgather"):
            with strict_double():
                found[case["name"], dispatcher, "double"] = run_case(
                    case, tensors, dispatcher, rank, world, torch.float64)
            found[case["name"], dispatcher, "single"] = run_case(
                case, tensors, dispatcher, rank, world, torch.float32)
    torch.save(found, f"{folder}/{world}.{rank}")
    torch.distributed.destroy_process_group()


def together(world, folder):
    """The cases on all ranks: rows one after the other, the router's gradients and sums added."""
    ranks = [torch.load(f"{folder}/{world}.{rank}") for rank in range(world)]
    whole = {}
    for key in ranks[0]:
        case = whole.setdefault(key, {})
        for rank in ranks:
            for name, tensor in rank[key].items():
                if name not in case:
                    case[name] = tensor
                elif name in ("y", "dx"):
                    case[name] = torch.cat([case[name], tensor])
                else:
                    case[name] = case[name] + tensor
    return whole


def distance(found, reference):
    norm = reference.norm()
    return float((found - reference).norm() / norm) if norm > 0 else float(found.norm())


def compare_runs(runs):
    """Fails unless all runs in float64 agree; says how far fp32 is from them."""
    for case in CASES:
        reference = runs[1][case["name"], "alltoall", "double"]
        most = {"double": 0.0, "single": 0.0}
        for world, found in runs.items():
            for (name, dispatcher, kind), tensors in found.items():
                if name != case["name"]:
                    continue
                assert tensors.keys() == reference.keys()
                for tensor, values in tensors.items():
                    off = distance(values, reference[tensor])
                    most[kind] = max(most[kind], off)
                    assert kind == "single" or off < 1e-13, (name, world, dispatcher, tensor, off)
        print(f"{case['name']:20} float64 runs within {most['double']:.1e}, fp32 {most['single']:.1e}"
              f"   tokens by expert {reference['tokens'].int().tolist()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "experts")
    output = parser.parse_args().output
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        for world in (1, 2):
            torch.multiprocessing.spawn(run_rank, (world, folder), nprocs=world)
            runs[world] = together(world, folder)
    compare_runs(runs)

    tensors, cases = shared_tensors(), []
    for case in CASES:
        found = runs[1][case["name"], "alltoall", "double"]
        scalars = {name: found.pop(name) for name in ("tokens", "aux_loss", "z_loss")}
        cases.append({
            "name": case["name"], "model": model_keys(case),
            "aux_coefficient": case.get("aux", 0.0), "z_loss": case.get("z", 0.0),
            "scope": case.get("scope", "sequence"),
            "tokens_by_expert": scalars["tokens"].int().tolist(),
            "aux_loss_sum": float(scalars["aux_loss"]), "z_loss_sum": float(scalars["z_loss"])})
        for name, tensor in {**router_tensors(case), **found}.items():
            tensors[f"{case['name']}/{name}"] = tensor
    output.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.float().contiguous() for name, tensor in tensors.items()},
              output / "tensors.safetensors")
    (output / "cases.json").write_text(json.dumps(
        {"sequences": SEQUENCES, "tokens": TOKENS, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
