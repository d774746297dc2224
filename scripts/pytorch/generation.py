#!/usr/bin/env python3
"""Generation by `train generate` and by transformers on the same cores; see scripts/bench_generation.sh.

usage: generation.py --train BINARY [--sizes M,L] [--dtypes fp32,bf16] [--sequences 1,8,32,128] [--rounds 2] [--output DIR]
       generation.py worker SPECIFICATION.json    (one measurement of transformers, a process of its own)
"""

import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

SIZES = {  # hidden, feed-forward, layers, heads, KV heads, vocabulary
    "M": (384, 1024, 6, 6, 3, 4096),
    "L": (768, 2048, 12, 12, 6, 32000),
}
PROMPT, NEW = (24, 72), 64  # tokens of a prompt, least and most; new ones


def model_keys(size):
    hidden, inner, layers, heads, kv_heads, vocabulary = SIZES[size]
    return {"model_type": "llama", "hidden_size": hidden, "intermediate_size": inner,
            "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "vocab_size": vocabulary,
            "max_position_embeddings": 2048, "tie_word_embeddings": False,
            "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def make_model(size, folder):
    import torch
    import llama
    torch.manual_seed(7)
    llama.make_model(model_keys(size)).save_pretrained(folder)


def prompts_of(size, count):
    numbers = random.Random(3)
    vocabulary = SIZES[size][5]
    return [[numbers.randrange(vocabulary) for _ in range(numbers.randint(*PROMPT))]
            for _ in range(count)]


def worker(path):
    """transformers: prompts padded on the left, all at once, a key/value cache, greedy."""
    import torch
    from transformers import AutoModelForCausalLM
    import llama  # silences the library
    from bench_worker import peak_bytes
    del llama
    spec = json.loads(pathlib.Path(path).read_text())
    torch.set_num_threads(spec["threads"])
    dtype = torch.bfloat16 if spec["dtype"] == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(spec["folder"], dtype=dtype).eval()
    longest = max(map(len, spec["prompts"]))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in spec["prompts"]])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in spec["prompts"]])

    def generate(tokens):
        begin = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(input_ids=ids, attention_mask=mask, do_sample=False,
                                 max_new_tokens=tokens, min_new_tokens=tokens, pad_token_id=0)
        return time.perf_counter() - begin, out[:, longest:].tolist()

    generate(2)
    first, _ = generate(1)
    seconds, tokens = generate(spec["new"])
    print(json.dumps({"first": first, "seconds": seconds, "tokens": tokens, "memory": peak_bytes()}))


def run_worker(python, spec, environment):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(spec, file)
        file.flush()
        out = subprocess.run([python, __file__, "worker", file.name], env=environment, check=True,
                             capture_output=True, text=True)
    return json.loads(out.stdout.splitlines()[-1])


def run_train(options, folder, prompts, dtype, ranks, environment):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(",".join(map(str, p)) + "\n" for p in prompts))
        file.flush()
        words = ["generate", "--checkpoint", str(folder), "--token-ids-file", file.name,
                 "--max-new-tokens", str(NEW), "--temperature", "0", "--precision", dtype]
        command = [options.train] + words if ranks == 1 else [
            "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n",
            str(ranks), options.train] + words
        out = subprocess.run(["/usr/bin/time", "-f", "peak %M"] + command, env=environment,
                             check=True, capture_output=True, text=True)
    said = re.search(r"^generated .* in ([0-9.]+) s: .* the first after ([0-9.]+) s", out.stderr,
                     re.MULTILINE)
    tokens = [list(map(int, line.split(",")))[len(p):]
              for line, p in zip(out.stdout.splitlines(), prompts)]
    peak = int(re.search(r"^peak ([0-9]+)$", out.stderr, re.MULTILINE).group(1)) * 1024
    return {"first": float(said.group(2)), "seconds": float(said.group(1)), "tokens": tokens,
            "memory": peak if ranks == 1 else None}


def measure(options):
    threads = len(os.sched_getaffinity(0))
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    rows = []
    for size in options.sizes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            make_model(size, folder)
            for dtype in options.dtypes.split(","):
                for count in map(int, options.sequences.split(",")):
                    prompts = prompts_of(size, count)
                    spec = {"folder": folder, "prompts": prompts, "dtype": dtype, "new": NEW,
                            "threads": threads}
                    found = {"transformers": []}
                    found.update({f"train, {n}": [] for n in (1, 2, 4)})
                    for _ in range(options.rounds):
                        found["transformers"].append(run_worker(sys.executable, spec, environment))
                        for ranks in (1, 2, 4) if size == "L" or options.ranks else (1,):
                            each = dict(os.environ) if ranks == 1 else environment
                            each.pop("OMP_NUM_THREADS", None)
                            found[f"train, {ranks}"].append(
                                run_train(options, folder, prompts, dtype, ranks, each))
                    same = sum(a == b for a, b in zip(found["transformers"][0]["tokens"],
                                                      found["train, 1"][0]["tokens"]))
                    for who, all_rounds in found.items():
                        if not all_rounds:
                            continue
                        seconds = min(one["seconds"] for one in all_rounds)
                        rows.append({"size": size, "dtype": dtype, "sequences": count, "who": who,
                                     "tokens_per_second": count * NEW / seconds,
                                     "first": min(one["first"] for one in all_rounds),
                                     "memory": all_rounds[0]["memory"], "equal": same})
                        print(json.dumps(rows[-1]), flush=True)
    return rows


def report(options, rows):
    import machine
    about = machine.describe(options.train, len(os.sched_getaffinity(0)))
    lines = ["# Generation beside transformers\n",
             f"By `scripts/bench_generation.sh`: greedy, {NEW} new tokens behind prompts of "
             f"{PROMPT[0]} to {PROMPT[1]}, the best of {options.rounds} rounds in turns on the "
             "same cores.\n", machine.describe_markdown(about) + "\n",
             "| size | type | sequences | tokens/s | transformers | ratio | 2 ranks, 4 | first token, s | "
             "transformers | memory, MiB | transformers | equal continuations |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for size, dtype, count in dict.fromkeys((r["size"], r["dtype"], r["sequences"]) for r in rows):
        row = {r["who"]: r for r in rows
               if (r["size"], r["dtype"], r["sequences"]) == (size, dtype, count)}
        ours, theirs = row["train, 1"], row["transformers"]
        ranks = ", ".join(f"{row[f'train, {n}']['tokens_per_second']:.0f}" for n in (2, 4)
                          if f"train, {n}" in row)
        lines.append(
            f"| {size} | {dtype} | {count} | {ours['tokens_per_second']:.0f} | "
            f"{theirs['tokens_per_second']:.0f} | "
            f"{ours['tokens_per_second'] / theirs['tokens_per_second']:.2f} | {ranks} | "
            f"{ours['first']:.3f} | {theirs['first']:.3f} | {ours['memory'] / 2**20:.0f} | "
            f"{theirs['memory'] / 2**20:.0f} | {ours['equal']} of {count} |")
    output = pathlib.Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    (output / "README.md").write_text("\n".join(lines) + "\n")
    (output / "data.json").write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")
    print("\n".join(lines))


def main():
    if sys.argv[1:2] == ["worker"]:
        return worker(sys.argv[2])
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", required=True)
    parser.add_argument("--sizes", default="M,L")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--sequences", default="1,8,32,128")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ranks", action="store_true", help="2 and 4 ranks at every size")
    parser.add_argument("--output", default="runs/bench_generation")
    options = parser.parse_args()
    return report(options, measure(options))


if __name__ == "__main__":
    main()
