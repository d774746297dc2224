#!/usr/bin/env python3
"""Proves that peft reads the adapters that `train export` wrote as they are meant.

usage: check_adapter.py ADAPTER --base HF_DIR [--merged HF_DIR] [--like ADAPTER] [--train BINARY]

Always      peft loads the folder beside the base, every tensor of it and no other.
--merged    `train export --merge` of the same gives the same logits as peft beside the base.
--like      another folder of adapters, as peft wrote it, has the same logits.
--train     BINARY's greedy ids from the folder and its base are those of peft.

Prints one line for each check; exits 1 at the end if any failed. Needs torch, transformers, peft.
"""

import argparse
import pathlib
import subprocess
import sys

import torch
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM
from transformers.utils import logging

TOLERANCE = 2e-5  # of the largest logit: other orders of sums in fp32
PROMPTS = 4
NEW_TOKENS = 24
NEAR_TIE = 1e-3  # where the best two logits are closer than this, fp32 may take either

failures = 0


def report(passed, text):
    global failures
    failures += not passed
    print(f"{'ok    ' if passed else 'FAILED'} {text}")


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def adapted(base, folder):
    return PeftModel.from_pretrained(load(base), folder).eval()


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


def check_names(model, folder):
    with safe_open(folder / "adapter_model.safetensors", framework="pt") as reader:
        stored = set(reader.keys())
    wanted = {name.replace(".default", "").replace("lora_magnitude_vector.weight", "lora_magnitude_vector")
              for name, _ in model.named_parameters() if "lora_" in name}
    report(stored == wanted, f"{len(stored)} tensors, which are those of peft's model")


def check_logits(name, wanted, found):
    error = ((wanted - found).abs().max() / wanted.abs().max()).item()
    report(error <= TOLERANCE, f"{name}: logits differ by {error:.1e} of the largest")


def check_ids(binary, model, arguments, prompt):
    """Greedy ids up to the first near tie, where rounding decides."""
    output = model.generate(
        input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW_TOKENS, do_sample=False,
        pad_token_id=0, eos_token_id=model.generation_config.eos_token_id, return_dict_in_generate=True,
        output_logits=True)
    best = torch.cat(output.logits).topk(2).values
    certain = prompt.shape[1] + int((best[:, 0] - best[:, 1] >= NEAR_TIE).long().cumprod(0).sum())
    result = subprocess.run(
        [binary, "generate", "--checkpoint", arguments.adapter, "--base", arguments.base, "--temperature", "0",
         "--max-new-tokens", str(NEW_TOKENS), "--token-ids", ",".join(map(str, prompt[0].tolist()))],
        capture_output=True, text=True)
    if result.returncode != 0:
        return report(False, f"generate: exit {result.returncode}: {result.stderr.strip()[-300:]}")
    found = [int(word) for word in result.stdout.strip().split(",")]
    wanted = output.sequences[0].tolist()
    report(found[:certain] == wanted[:certain], f"generate: {certain - prompt.shape[1]} greedy ids are peft's")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("adapter", type=pathlib.Path)
    parser.add_argument("--base", type=pathlib.Path, required=True)
    parser.add_argument("--merged", type=pathlib.Path)
    parser.add_argument("--like", type=pathlib.Path)
    parser.add_argument("--train", type=pathlib.Path)
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    torch.manual_seed(1)
    model = adapted(arguments.base, arguments.adapter)
    ids = torch.randint(0, model.config.vocab_size, (PROMPTS, 12))
    logits = logits_of(model, ids)
    check_names(model, arguments.adapter)
    plain = logits_of(load(arguments.base), ids)
    report(not torch.equal(plain, logits), "the adapters change the logits")
    if arguments.merged:
        check_logits("--merged", logits, logits_of(load(arguments.merged), ids))
    if arguments.like:
        check_logits("--like", logits_of(adapted(arguments.base, arguments.like), ids), logits)
    if arguments.train:
        for prompt in ids:
            check_ids(arguments.train, model, arguments, prompt[None])
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
