#!/usr/bin/env python3
"""Bubbles and memory of pipeline schedules as `train plan` foresees them, beside 1F1B and beside ZB-H1 as published.

    scripts/bench_zero_bubble.py [--train BINARY] [--recompute none|selective|full] [--stages 4,8,16]

Shapes: Llama 7B and 70B at 4,096 tokens, GPT-2 1.5B at 1,024, Qwen3 8B at 4,096; bf16, one sequence a micro-batch, 4 p
micro-batches, no head in the times (every layer takes as long: products and causal attention, counted in operations).
`published` is ZB-H1 where W keeps no more than F, as its authors have it, for the same times. `gain`: what of the
published step from 1F1B a schedule makes. `bytes`: activations of the rank that holds most, over those of 1F1B.
Prints a table in Markdown. Nothing is run; about a minute.
"""

import argparse
import json
import subprocess
import sys
import tempfile

MODELS = {
    "Llama 7B": (4096, {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
                        "num_attention_heads": 32, "vocab_size": 32000}),
    "Llama 70B": (4096, {"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
                         "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000}),
    "GPT-2 1.5B": (1024, {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "vocab_size": 50257}),
    "Qwen3 8B": (4096, {"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
                        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}),
}
KINDS = ("zb-h1", "zb-auto", "zb-v", "v-half", "interleaved")


def layer_times(model, tokens):
    """F, B and W of a layer in operations of a token: products, then the scores and their use of a causal mask."""
    hidden = model.get("hidden_size", model.get("n_embd"))
    heads = model.get("num_attention_heads", model.get("n_head"))
    head = model.get("head_dim", hidden // heads)
    queries, keys = heads * head, model.get("num_key_value_heads", heads) * head
    mlp = 3 * model["intermediate_size"] if "intermediate_size" in model else 8 * hidden
    products = 2 * hidden * (2 * queries + 2 * keys + mlp)
    attention = 2 * tokens * queries
    return products + attention, products + 2.5 * attention, products


def output_of(arguments):
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}: ends with {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", default="build/cpu-release/train")
    parser.add_argument("--recompute", default="none", choices=("none", "selective", "full"))
    parser.add_argument("--stages", default="4,8,16")
    options = parser.parse_args()
    folder = tempfile.TemporaryDirectory()
    config = f"{folder.name}/config.json"
    with open(config, "w", encoding="utf-8") as file:
        file.write("{}")

    print("| model | p, m | 1f1b | published | " + " | ".join(f"{k}: gain, bytes" for k in KINDS) + " |")
    print("|---" * (4 + len(KINDS)) + "|")
    for name, (tokens, model) in MODELS.items():
        for p in map(int, options.stages.split(",")):
            m = 4 * p
            f, b, w = (t / layer_times(model, tokens)[2] for t in layer_times(model, tokens))
            again = f if options.recompute == "full" else 0

            def plan(kind):
                split = 1 if kind in ("1f1b", "zb-h1", "zb-auto") else 2
                settings = [f"model={json.dumps(model)}", "run.directory=none", "run.steps=1",
                            "optimizer.lr=1e-4", "data.train=synthetic", f"batch.global={m}",
                            f"data.sequence_length={tokens}", "batch.micro=1", "precision.compute=bf16",
                            f"parallel.pipeline={p}", f"parallel.pipeline_schedule={kind}",
                            f"parallel.recompute={options.recompute}",
                            f"parallel.pipeline_times={[f / split, (b + again) / split, w / split, 0]}"]
                command = [options.train, "plan", "--world", str(p), "--json", "--no-data", config]
                for setting in settings:
                    command += ["--set", setting]
                done = subprocess.run(command, capture_output=True, text=True)
                found = json.loads(done.stdout)
                if found.get("errors"):
                    return found["errors"][0]["message"]
                most = max(rank["memory_bytes"]["activations"] for rank in found["ranks"])
                return found["bubble_rate"], most

            line = plan("1f1b")
            if isinstance(line, str):
                print(f"| {name} | {p}, {m} | {line} |")
                continue
            published = output_of([options.train, "schedule", "--kind", "zb-h1", "--stages", str(p), "--micro-batches",
                                   str(m), "--times", f"{f},{b + again},{w}", "--json"])["bubble_rate"]
            cells = []
            for kind in KINDS:
                found = plan(kind)
                if isinstance(found, str):
                    cells.append(found)
                    continue
                gain = (line[0] - found[0]) / (line[0] - published)
                cells.append(f"{found[0]:.3f}: {gain:.2f}, {found[1] / line[1]:.2f}")
            print(f"| {name} | {p}, {m} | {line[0]:.3f} | {published:.3f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
