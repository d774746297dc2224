#!/usr/bin/env python3
"""What a rank's host asks for in a step, as `train plan` counts it: transfers, and copies for them.

    scripts/bench_host_work.py [--train BINARY] [--ranks 8,128,1024,16384]

Shapes: Llama 3.1 8B and 70B at 8,192 tokens, bf16, one sequence and one micro-batch a step, on GPUs; ranks of the data
axis beside 1 and 8 of the tensor axis; ZeRO 1 and 3 over all of them. `a layer and direction`: launches of ZeRO alone (transfers and
copies of gathers and reductions, tensor 1) over the layers and the directions: forward's gather, backward's gather,
backward's reduction (ZeRO 1: one of each a step). `buckets`: memory of the rings. Prints a table in Markdown. Nothing
is run; a minute.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

MODELS = {
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
           "num_key_value_heads": 8},
    "70B": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
            "num_key_value_heads": 8},
}


def plan(train, model, tensor, ranks, stage):
    config = {
        "run": {"directory": "none", "steps": 1, "device": "cuda"},
        "model": {"model_type": "llama", "vocab_size": 128256, "max_position_embeddings": 131072, **MODELS[model]},
        "data": {"train": "synthetic", "sequence_length": 8192},
        "batch": {"micro": 1, "accumulation": 1},
        "optimizer": {"lr": 1e-4},
        "precision": {"compute": "bf16"},
        "parallel": {"tensor": tensor, "zero_stage": stage, "zero_group": ranks if stage > 0 else 0},
        "evaluation": {"batches": 1},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config))
        done = subprocess.run([train, "plan", file, "--world", str(tensor * ranks), "--no-data", "--json"],
                              capture_output=True, text=True)
    try:
        figures = json.loads(done.stdout)
    except json.JSONDecodeError:
        sys.exit(done.stderr)
    if done.returncode != 0:
        sys.exit(f"{model}, {ranks} ranks: {figures['errors']}")
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", default="build/cpu-release/train")
    parser.add_argument("--ranks", default="8,128,1024,16384")
    args = parser.parse_args()
    print("| model | tensor | data ranks | ZeRO | transfers | copies | a layer and direction | buckets |")
    print("|---|---|---|---|---|---|---|---|")
    for model, shape in MODELS.items():
        for tensor in (1, 8):
            alone = plan(args.train, model, tensor, 1, 0)["host"]
            for ranks in map(int, args.ranks.split(",")):
                for stage in (1, 3):
                    figures = plan(args.train, model, tensor, ranks, stage)
                    host = figures["host"]
                    launches = host["collectives"] - alone["collectives"] + host["copies"]
                    directions = 3 if stage == 3 else 2
                    buffers = max(rank["memory_bytes"]["buffers"] for rank in figures["ranks"])
                    print(f"| {model} | {tensor} | {ranks:,} | {stage} | {host['collectives']:,} | {host['copies']:,} "
                          f"| {launches / (shape['num_hidden_layers'] * directions):.1f} | {buffers / 2**30:.2f} GiB |",
                          flush=True)


if __name__ == "__main__":
    main()
