#!/usr/bin/env python3
"""Times a training step of families, and of windows, by `train` and by transformers in turns, on this machine's CPUs.

usage: families.py [--train BINARY] [--rounds N] [--threads N] [--output FILE] [CASE...]

Each round runs every case by `train benchmark` in fp32 and by PyTorch, eager and compiled (sdpa), each in a process of
its own. What is printed is the median of all steps, and the ratio of PyTorch's best to ours.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import machine

HERE = pathlib.Path(__file__).resolve().parent
SHAPE = {"num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 384,
         "intermediate_size": 1024, "vocab_size": 256, "head_dim": 64, "tie_word_embeddings": False,
         "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def case(family, sequence, micro, **keys):
    model = {"model_type": family, **SHAPE, "max_position_embeddings": sequence, **keys}
    return {"model": {key: value for key, value in model.items() if value != "none"},
            "sequence": sequence, "micro": micro}


def experts(count, chosen, ffn):
    """Of the work of a dense layer of chosen x ffn columns. transformers multiplies by grouped_mm."""
    return case("qwen3_moe", 256, 16, num_experts=count, num_experts_per_tok=chosen, moe_intermediate_size=ffn,
                norm_topk_prob=True)


CASES = {
    "llama": case("llama", 256, 16),
    "qwen3": case("qwen3", 256, 16),
    "olmo2": case("olmo2", 256, 16),
    "olmo3": case("olmo3", 256, 16, sliding_window=64),
    "gemma3": case("gemma3_text", 256, 16, sliding_window=64, query_pre_attn_scalar=64),
    "8 experts": experts(8, 2, 512),
    "64 experts": experts(64, 8, 128),
    "latents": case("deepseek_v3", 256, 16, head_dim="none", num_key_value_heads=6, q_lora_rank=192, kv_lora_rank=128,
                    qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64, n_routed_experts=8, num_experts_per_tok=2,
                    moe_intermediate_size=512, n_group=4, topk_group=2, first_k_dense_replace=6),
    "all of 4096": case("mistral", 4096, 1, sliding_window=None),
    "512 of 4096": case("mistral", 4096, 1, sliding_window=512),
}


def ours(train, name, of, threads, folder):
    config = {"model": of["model"], "data": {"train": "synthetic", "sequence_length": of["sequence"]},
              "batch": {"micro": of["micro"], "global": of["micro"]}, "optimizer": {"lr": 1e-4},
              "run": {"directory": str(folder / "run"), "steps": 10, "device": "cpu", "threads_per_rank": threads},
              "precision": {"compute": "fp32"}}
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    result = subprocess.run([train, "benchmark", path, "--steps", "5", "--no-rates", "--json"], capture_output=True,
                            text=True)
    if result.returncode != 0:
        sys.exit(f"{name}: {result.stderr[-2000:]}")
    return json.loads(result.stdout)["step_seconds"]["median"]


def theirs(name, of, compile_it, threads, folder):
    spec = {"model": of["model"], "dtype": "fp32", "compile": compile_it, "batch": of["micro"],
            "sequence": of["sequence"], "warmup": 2, "steps": 5}
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), PYTHONDONTWRITEBYTECODE="1")
    result = subprocess.run([sys.executable, HERE / "bench_worker.py", "step", path], capture_output=True, text=True,
                            env=environment)
    if result.returncode != 0:
        print(f"{name}, {'compiled' if compile_it else 'eager'}: {result.stderr.strip().splitlines()[-1]}")
        return None
    return statistics.median(json.loads(result.stdout)["step_seconds"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", default=HERE.parent.parent / "build/cpu-release/train")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=machine.usable_cores())
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    a = parser.parse_args()
    times = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for _ in range(a.rounds):
            for name in a.cases or CASES:
                of = CASES[name]
                row = times.setdefault(name, {"ours": [], "eager": [], "compiled": []})
                row["ours"].append(ours(a.train, name, of, a.threads, folder))
                for way in ("eager", "compiled"):
                    seconds = theirs(name, of, way == "compiled", a.threads, folder)
                    if seconds is not None:
                        row[way].append(seconds)
    table = {}
    for name, row in times.items():
        medians = {way: statistics.median(seconds) for way, seconds in row.items() if seconds}
        best = min(seconds for way, seconds in medians.items() if way != "ours")
        table[name] = {**medians, "ratio": best / medians["ours"]}
        print(f"{name:12} ours {medians['ours'] * 1e3:8.1f} ms, " + ", ".join(
            f"{way} {medians[way] * 1e3:8.1f} ms" for way in ("eager", "compiled") if way in medians) +
            f": {best / medians['ours']:.2f} x")
    if a.output:
        a.output.write_text(json.dumps({"machine": machine.describe(str(a.train), a.threads), "steps": table}, indent=1)
                            + "\n")


if __name__ == "__main__":
    main()
