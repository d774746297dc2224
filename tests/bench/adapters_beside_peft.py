#!/usr/bin/env python3
"""Steps of adapters beside a frozen base: this program's and peft's, in turns on the same cores, in fp32.

usage: adapters_beside_peft.py TRAIN [--threads N] [--rounds N]

Needs torch, transformers and peft. Prints the medians and their ratio: tokens a second, for LoRA on every linear
product, DoRA, and the whole model trained (ours alone: what the frozen base saves).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

MODEL = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8,
         "num_key_value_heads": 4, "intermediate_size": 1408, "vocab_size": 8192, "max_position_embeddings": 1024,
         "tie_word_embeddings": True}
SEQUENCE, MICRO, RANK = 512, 2, 16


def config_file(folder, lora):
    config = {"run": {"directory": str(folder / "run"), "steps": 100, "device": "cpu"}, "model": MODEL,
              "data": {"train": "synthetic", "sequence_length": SEQUENCE}, "batch": {"global": MICRO, "micro": MICRO},
              "optimizer": {"lr": 1e-4}, "precision": {"compute": "fp32"}}
    if lora:
        config["lora"] = lora
        config["init"] = {"weights": str(folder / "model")}
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def ours(train, folder, lora, threads):
    path = config_file(folder, lora)
    text = subprocess.run([train, "benchmark", str(path), "--json"], check=True, capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": str(threads)}).stdout
    return json.loads(text)["tokens_per_second"]


def theirs(dora):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**MODEL), attn_implementation="sdpa").float()
    model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", use_dora=dora))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    ids = torch.randint(0, MODEL["vocab_size"], (MICRO, SEQUENCE + 1))

    def step():
        logits = model(input_ids=ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    step()
    times = []
    for _ in range(4):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return MICRO * SEQUENCE / statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()

    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(arguments.threads)
    lora = {"rank": RANK, "alpha": 2 * RANK}
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**MODEL)).save_pretrained(folder / "model")
        for _ in range(arguments.rounds):
            for what, of in (("LoRA", lora), ("DoRA", {**lora, "dora": True}), ("whole", None)):
                found.setdefault((what, "ours"), []).append(ours(arguments.train, folder, of, arguments.threads))
                if of:
                    found.setdefault((what, "peft"), []).append(theirs("dora" in of))
    for (what, who), values in found.items():
        print(f"{what:6} {who:5} {statistics.median(values):8.0f} tokens/s  ({', '.join(f'{v:.0f}' for v in values)})")
    for what in ("LoRA", "DoRA"):
        ratio = statistics.median(found[what, "ours"]) / statistics.median(found[what, "peft"])
        print(f"{what}: {ratio:.2f} times peft")
    ratio = statistics.median(found["LoRA", "ours"]) / statistics.median(found["whole", "ours"])
    print(f"LoRA: {ratio:.2f} times the whole model trained")


if __name__ == "__main__":
    main()
