#!/usr/bin/env python3
"""Compares what `train plan` says of a rank's memory with what the process takes.

    scripts/check_memory.py TRAIN [--count 200] [--seed 1] [--adapters | --table | --pipelines]
                            [--tolerance 0.03]

Draws configs of every family and mesh of up to 4 ranks, of 20 to 200 MB a rank, runs four steps of
each by `train benchmark` and compares the growth of every rank's memory since before its set-up
(RssAnon + RssShmem) with the plan, the scratch areas of ops and what libraries have by malloc and
in MPI's shared memory, which the plan does not hold. Of what was planned, pages that no step has
touched are taken off: the system has given no memory for them (buckets that a small model's layers
fill in part). Bytes sent along each axis but that of experts must be the plan's exactly.
--adapters has adapters beside a frozen base in each, of layers, of the head, or of the head alone.
--table instead measures one model of 30 million parameters on 4 ranks under each way to save
memory; --pipelines measures one whose activations are the most on 4 ranks under each schedule,
without the allowance. Ends with 1 where a rank's growth is further off than the tolerance and the allowance
below, or where bytes differ.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

# Of libraries outside malloc, whatever the config: stacks of threads, MPI's queues.
ALLOWANCE = 1 << 20
AXES = ("data", "context", "tensor")


EXPERTS = {
    "qwen2_moe": {"num_experts": 8, "num_experts_per_tok": 3, "shared_expert_intermediate_size": 96},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 40},
    "deepseek_v3": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1},
}
LATENTS = {"qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}


def legal(model, t, c, tokens, cut, method):
    heads, kv, ffn = model["num_attention_heads"], model["num_key_value_heads"], model["intermediate_size"]
    shares = lambda h, k, n: h % n == 0 and (k % n == 0 or n % k == 0)
    if not shares(heads, kv, t) or ffn % t:
        return False
    if method == "ulysses" and not shares(heads // t, max(1, kv // t), c):
        return False
    return tokens % (2 * c if c > 1 else 1) == 0 and (not cut or tokens // c % t == 0)


def draw(dice):
    head_dim, heads = dice.choice([16, 32, 64]), dice.choice([2, 4, 6, 8])
    hidden = head_dim * heads
    family = dice.choice(["llama", "gpt2", "qwen2", "qwen3", "qwen2_moe", "deepseek_v3", "gpt_oss"])
    tokens = dice.choice([64, 96, 128, 256, 512])
    model = {
        "model_type": family,
        "vocab_size": dice.choice([257, 1000, 4001, 16000]) + dice.randrange(50),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if family in ("gpt2", "deepseek_v3") else dice.choice([h for h in (1, 2, 4, heads) if heads % h == 0]),
        "intermediate_size": dice.choice([2, 3, 4]) * hidden,
        "num_hidden_layers": dice.randrange(1, 9),
        "max_position_embeddings": 512,
        "tie_word_embeddings": dice.random() < 0.5,
    }
    if family in ("qwen3", "gpt_oss"):
        model["head_dim"] = head_dim
    if family in EXPERTS:
        width = "intermediate_size" if family == "gpt_oss" else "moe_intermediate_size"
        model.update({**EXPERTS[family], width: dice.choice([1, 2]) * head_dim})
    if family == "deepseek_v3":
        model.update(LATENTS, q_lora_rank=dice.choice([None, head_dim, 3 * head_dim]), kv_lora_rank=2 * head_dim,
                     first_k_dense_replace=dice.randrange(min(2, model["num_hidden_layers"])))
    world = dice.choice([1, 1, 2, 2, 3, 4])
    t = dice.choice([i for i in range(1, world + 1) if world % i == 0])
    c = dice.choice([i for i in range(1, world // t + 1) if world // t % i == 0])
    cut, method = dice.random() < 0.7, dice.choice(["ring", "allgather", "ulysses"])
    if not legal(model, t, c, tokens, cut, method):
        return None
    if family == "gpt2":
        del model["num_key_value_heads"]
    peers = world // t
    parallel = {
        "tensor": t,
        "context": c,
        "context_method": method,
        "sequence_parallel": cut,
        "zero_stage": dice.randrange(4),
        "recompute": dice.choice(["none", "selective", "full"]),
        "speculative_step": dice.random() < 0.3,
    }
    if parallel["zero_stage"] and dice.random() < 0.3:
        parallel["zero_group"] = dice.choice([i for i in range(1, peers + 1) if peers % i == 0])
    if family in EXPERTS:
        parallel["expert"] = dice.choice([i for i in (1, 2, 4) if world % i == 0])
        parallel["speculative_step"] = False
    micro, accumulation = dice.choice([1, 2, 3, 4, 8]), dice.choice([1, 1, 2])
    return world, {
        "run": {"directory": "run", "steps": 10, "threads_per_rank": 1},
        "model": model,
        "data": {"train": "synthetic", "sequence_length": tokens, "document_mask": dice.random() < 0.3},
        "batch": {"micro": micro, "accumulation": accumulation},
        "optimizer": {"lr": 1e-3, "kind": "muon" if micro % 2 else "adamw"},
        "precision": {"compute": dice.choice(["fp32", "bf16"])},
        "parallel": parallel,
    }


class Runner:
    def __init__(self, train):
        self.train = os.path.abspath(train)
        self.folder = tempfile.mkdtemp(prefix="check_memory_")

    def call(self, command, reads=True):
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                           OMPI_MCA_btl_vader_single_copy_mechanism="none", OMP_NUM_THREADS="1")
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ends with {done.returncode}\n{done.stdout}{done.stderr}")
        return json.loads(done.stdout) if reads else None

    def write(self, config):
        with open(os.path.join(self.folder, "config.json"), "w") as file:
            json.dump(config, file)

    def make_base(self, config):
        for folder in ("first", "base"):
            shutil.rmtree(os.path.join(self.folder, folder), ignore_errors=True)
        plain = {key: config[key] for key in ("model", "optimizer")}
        self.write({**plain, "run": {"directory": "first", "steps": 1}, "data": {"train": "synthetic", "sequence_length": 8},
                    "batch": {"micro": 1}})
        self.call([self.train, "config.json"], reads=False)
        self.call([self.train, "export", "--checkpoint", "first", "--output", "base"], reads=False)

    def plan(self, world, config):
        self.write(config)
        return self.call([self.train, "plan", "--json", "--world", str(world), "config.json"])

    def measure(self, world, config):
        self.write(config)
        command = [self.train, "benchmark", "config.json", "--json", "--no-rates", "--warmup", "0", "--steps", "4"]
        if world > 1:
            command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(world)] + command
        return self.call(command)["ranks"]


def with_adapters(dice, runner, config):
    """The same beside weights that the config makes."""
    model = config["model"]
    some = "c_attn" if model["model_type"] == "gpt2" else "o_proj"
    targets = [[], [some]] if model["tie_word_embeddings"] else [[], [some, "lm_head"], ["lm_head"]]
    runner.make_base(config)
    lora = {"rank": dice.choice([1, 4, 16]), "targets": dice.choice(targets), "dora": dice.random() < 0.4,
            "dropout": dice.choice([0, 0.1])}
    return {**config, "init": {"weights": "base"}, "lora": lora}


def difference(rank):
    """Of the growth, what plan, scratch, pages of those that were never touched and libraries' heap do not explain."""
    asked = rank["planned_memory_bytes"] + rank["scratch_bytes"]
    return rank["memory_bytes"] - (asked - rank["untouched_bytes"]) - rank["heap_bytes"]


def name_of(world, config):
    model, parallel, batch = config["model"], config["parallel"], config["batch"]
    lora = config.get("lora")
    adapters = f"{'dora' if lora['dora'] else 'lora'} {'+'.join(lora['targets']) or 'all'} " if lora else ""
    mesh = f"t{parallel['tensor']} c{parallel['context']} d{world // parallel['tensor'] // parallel['context']}"
    return (f"{model['model_type']:11} {config['precision']['compute']} {mesh} zero {parallel['zero_stage']}"
            f"{'/' + str(parallel['zero_group']) if 'zero_group' in parallel else ''} {parallel['context_method']:9} "
            f"{parallel['recompute']:9} {adapters}micro {batch['micro']} x {batch['accumulation']} T {config['data']['sequence_length']}")


def counted(sent):
    """What no routing changes: to experts the plan has what is to be expected."""
    return {axis: value for axis, value in sent.items() if axis != "expert"}


def random_configs(runner, options):
    dice, shares, worst, failures, count = random.Random(options.seed), [], (0, ""), 0, 0
    while count < options.count:
        drawn = draw(dice)
        if drawn is None:
            continue
        world, config = drawn
        plan = runner.plan(world, config)
        tokens = plan["batch"]["global"] * config["data"]["sequence_length"]
        if not 20e6 <= plan["memory_bytes_max"] <= 200e6 or plan["model_flops_per_token"] * tokens > 60e9:
            continue
        count += 1
        if options.adapters:
            config = with_adapters(dice, runner, config)
        ranks = runner.measure(world, config)
        rank = max(ranks, key=lambda each: abs(difference(each)) / each["memory_bytes"])
        off, share = difference(rank), difference(rank) / rank["memory_bytes"]
        bytes_differ = any(counted(each["sent_bytes"]) != counted(each["planned_sent_bytes"]) for each in ranks)
        # What channels stage for experts grows with what comes; planned is the most that can.
        less = 0 if config["model"]["model_type"] in EXPERTS else -off
        beyond = max(off, less) > options.tolerance * rank["memory_bytes"] + ALLOWANCE
        failures += bytes_differ or beyond
        shares.append(abs(share))
        worst = max(worst, (abs(share), name_of(world, config)))
        print(f"{count:4} {name_of(world, config):75} planned {rank['planned_memory_bytes'] / 1e6:7.2f} "
              f"grown {rank['memory_bytes'] / 1e6:7.2f} MB {100 * share:+6.2f} % code {rank['code_bytes'] / 1e6:5.1f} "
              f"libraries {rank['heap_bytes'] / 1e6:5.2f} scratch {rank['scratch_bytes'] / 1e6:5.2f} "
              f"untouched {rank['untouched_bytes'] / 1e6:5.2f}"
              f"{' BYTES SENT DIFFER' if bytes_differ else ''}{' BEYOND' if beyond else ''}", flush=True)
    shares.sort()
    within = sum(share <= options.tolerance for share in shares)
    print(f"{count} configs: {within} within {100 * options.tolerance:g} %, median {100 * statistics.median(shares):.2f} %, nine of ten within "
          f"{100 * shares[int(0.9 * (count - 1))]:.2f} %, worst {100 * worst[0]:.2f} % ({worst[1].strip()}); {failures} failures")
    return failures


def table(runner, _):
    base = {
        "run": {"directory": "run", "steps": 10, "threads_per_rank": 1},
        "model": {"model_type": "llama", "vocab_size": 8000, "hidden_size": 512, "num_attention_heads": 8,
                  "num_key_value_heads": 8, "intermediate_size": 1376, "num_hidden_layers": 7,
                  "max_position_embeddings": 512, "tie_word_embeddings": False},
        "data": {"train": "synthetic", "sequence_length": 512},
        "batch": {"micro": 1, "accumulation": 1},
        "optimizer": {"lr": 1e-3},
        "precision": {"compute": "fp32"},
    }
    cells = [(4, f"data 4, zero {stage}", {"zero_stage": stage}) for stage in range(4)]
    cells += [(4, "data 4, zero 3 in groups of 2", {"zero_stage": 3, "zero_group": 2})]
    for t in (2, 4):
        cells += [(4, f"tensor {t}, data {4 // t}, tokens {'cut' if cut else 'whole'}",
                   {"tensor": t, "sequence_parallel": cut}) for cut in (False, True)]
    cells += [(4, f"context {c} {method}, data {4 // c}", {"context": c, "context_method": method})
              for c in (2, 4) for method in ("ring", "allgather", "ulysses")]
    cells += [(1, f"one rank, recompute {kind}", {"recompute": kind}) for kind in ("none", "selective", "full")]
    cells += [(4, f"tensor 4, recompute {kind}", {"tensor": 4, "recompute": kind}) for kind in ("none", "selective", "full")]
    print("| mesh | parameters | gradients | optimizer | activations | buffers | plan | measured | off |")
    print("|---|---|---|---|---|---|---|---|---|")
    for world, name, parallel in cells:
        config = dict(base, parallel=parallel)
        plan = runner.plan(world, config)
        memory = max((rank["memory_bytes"] for rank in plan["ranks"]), key=lambda each: each["total"])
        ranks = runner.measure(world, config)
        rank = max(ranks, key=lambda each: each["memory_bytes"])
        columns = [memory[key] for key in ("parameters", "gradients", "optimizer", "activations", "buffers", "total")]
        columns.append(rank["memory_bytes"])
        print(f"| {name} | " + " | ".join(f"{value / 1e6:.1f}" for value in columns)
              + f" | {100 * difference(rank) / rank['memory_bytes']:+.1f} % |", flush=True)
    return 0


SCHEDULES = ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "zb-auto", "zb-v", "v-half", "v-min", "dualpipe-v")


def pipelines(runner, options):
    base = {
        "run": {"directory": "run", "steps": 10, "threads_per_rank": 1},
        "model": {"model_type": "llama", "vocab_size": 1000, "hidden_size": 256, "num_attention_heads": 4,
                  "num_key_value_heads": 4, "intermediate_size": 704, "num_hidden_layers": 8,
                  "max_position_embeddings": 512, "tie_word_embeddings": False},
        "data": {"train": "synthetic", "sequence_length": 512},
        "batch": {"micro": 1, "accumulation": 8},
        "optimizer": {"lr": 1e-3},
        "precision": {"compute": "fp32"},
    }
    first, failures = 0, 0
    print("| schedule | recompute | activations of ranks 0 to 3, MB | most / 1f1b's rank 0 | most of the plan, MB | "
          "most measured, MB | worst rank off |")
    print("|---|---|---|---|---|---|---|")
    for recompute, schedules in (("none", SCHEDULES), ("full", ("1f1b", "zb-h1", "zb-v"))):
        for schedule in schedules:
            config = dict(base, parallel={"pipeline": 4, "pipeline_schedule": schedule, "recompute": recompute})
            activations = [rank["memory_bytes"]["activations"] for rank in runner.plan(4, config)["ranks"]]
            first = first or activations[0]
            ranks = runner.measure(4, config)
            off = max((difference(rank) / rank["memory_bytes"] for rank in ranks), key=abs)
            failures += abs(off) > options.tolerance
            print(f"| {schedule} | {recompute} | {', '.join(f'{each / 1e6:.1f}' for each in activations)} | "
                  f"{max(activations) / first:.2f} | {max(rank['planned_memory_bytes'] for rank in ranks) / 1e6:.1f} | "
                  f"{max(rank['memory_bytes'] for rank in ranks) / 1e6:.1f} | {100 * off:+.2f} % |", flush=True)
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tolerance", type=float, default=0.03)
    parser.add_argument("--adapters", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--pipelines", action="store_true")
    options = parser.parse_args()
    runner = Runner(options.train)
    work = table if options.table else pipelines if options.pipelines else random_configs
    sys.exit(1 if work(runner, options) else 0)


main()
