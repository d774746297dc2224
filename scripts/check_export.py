#!/usr/bin/env python3
"""Proves that transformers reads what `train export` wrote, and reads the same model from it.

usage: check_export.py EXPORTED [--source HF_DIR] [--checkpoint STEP_DIR] [--train BINARY]

Always      transformers loads the directory; no tensor is missing, surplus or of another shape.
--source    an imported and exported model has the source's tensors, bit for bit, and its logits.
--checkpoint every exported tensor is the checkpoint's (model.h5), rounded to the exported type.
--train     BINARY's greedy ids equal those of transformers, from the exported directory, and from
            the checkpoint too where one is given.

Prints one line for each check; exits 1 at the end if any failed. Needs torch, transformers and, for
--checkpoint, h5py.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

PROMPTS = 4
NEW_TOKENS = 24
# Where the best two logits are closer than this, fp32 may take either; ids are not compared beyond.
NEAR_TIE = 1e-3

failures = 0


def report(passed, text):
    global failures
    failures += not passed
    print(f"{'ok    ' if passed else 'FAILED'} {text}")


def read_tensors(directory):
    """All tensors of a directory, single file or sharded, and the files' metadata."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        weight_map = json.loads(index.read_text())["weight_map"]
    else:
        weight_map = None
    files = sorted(set(weight_map.values())) if weight_map else ["model.safetensors"]
    tensors, metadata = {}, []
    for file in files:
        with safe_open(directory / file, framework="pt") as reader:
            metadata.append(reader.metadata())
            for name in reader.keys():
                tensors[name] = reader.get_tensor(name)
                if weight_map and weight_map.get(name) != file:
                    report(False, f"{name} stands in {file}, the index says {weight_map.get(name)}")
    if weight_map:
        report(set(weight_map) == set(tensors), "the index names exactly the tensors of the files")
    return tensors, metadata


def load_model(directory):
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True)
    faults = {kind: sorted(map(str, names)) for kind, names in info.items() if names}
    report(not faults, f"transformers loads {directory} {faults or ''}")
    # Its grouped products take rows of whole 16 bytes alone.
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model.eval()


def random_prompts(model):
    generator = torch.Generator().manual_seed(3)
    vocabulary = model.config.get_text_config().vocab_size
    return [torch.randint(0, vocabulary, (1, 5 + i), generator=generator) for i in range(PROMPTS)]


def same_bytes(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))


def check_tensors(exported, expected, what):
    surplus, missing = exported.keys() - expected.keys(), expected.keys() - exported.keys()
    report(not surplus and not missing,
           f"tensor names equal those of {what} {sorted(surplus) + sorted(missing) or ''}")
    other = [name for name in sorted(exported.keys() & expected.keys())
             if not same_bytes(exported[name], expected[name])]
    report(not other, f"{len(exported) - len(other)} of {len(exported)} tensors have the bytes of "
                      f"{what} {other[:5] or ''}")


def check_source(exported, model, source):
    expected, _ = read_tensors(source)
    some = next(iter(exported.values())).dtype
    expected = {name: tensor.to(some) for name, tensor in expected.items()}
    check_tensors(exported, expected, str(source))
    if all(tensor.dtype == torch.float32 for tensor in exported.values()):
        original = load_model(source)
        with torch.no_grad():
            same = all(torch.equal(model(ids).logits, original(ids).logits)
                       for ids in random_prompts(model))
        report(same, f"logits equal those of {source}, bit for bit")


def whole_tensors(parameters):
    """Those of files: a parameter NAME[e], NAME[e].gate or NAME[e].up is a part of NAME, transposed, or of every other column."""
    whole, parts = {}, {}
    for name, tensor in parameters.items():
        stored, bracket, rest = name.partition("[")
        index, _, columns = rest.partition("]")
        if not bracket:
            whole[name] = tensor
            continue
        parts.setdefault(stored, {}).setdefault(int(index), {})[columns] = tensor.T if tensor.dim() == 2 else tensor
    for stored, experts in parts.items():
        slices = [experts[i][""] if "" in experts[i] else torch.stack([experts[i][".gate"], experts[i][".up"]], -1).flatten(-2)
                  for i in range(len(experts))]
        whole[stored] = torch.stack(slices).contiguous()
    return whole


def check_checkpoint(exported, checkpoint):
    import h5py

    with h5py.File(checkpoint / "model.h5") as file:
        parameters = file["parameters"]
        expected = whole_tensors({name: torch.from_numpy(parameters[name][...]) for name in parameters})
    expected = {name: tensor.to(exported[name].dtype) if name in exported else tensor
                for name, tensor in expected.items()}
    check_tensors(exported, expected, str(checkpoint))


def library_ids(model, prompt):
    """Greedy ids as far as no near tie makes them a matter of rounding."""
    end_token = model.generation_config.eos_token_id
    output = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW_TOKENS, do_sample=False,
        pad_token_id=0, eos_token_id=end_token, return_dict_in_generate=True, output_logits=True)
    best = torch.cat(output.logits).topk(2).values
    certain = int((best[:, 0] - best[:, 1] >= NEAR_TIE).long().cumprod(0).sum())
    return output.sequences[0].tolist(), prompt.shape[1] + certain


def binary_ids(binary, checkpoint, prompt):
    command = [str(binary), "generate", "--checkpoint", str(checkpoint), "--temperature", "0",
               "--max-new-tokens", str(NEW_TOKENS),
               "--token-ids", ",".join(map(str, prompt[0].tolist()))]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        return None, f"exit {result.returncode}: {result.stderr.strip()[-300:]}"
    try:
        return [int(part) for part in result.stdout.strip().split(",")], ""
    except ValueError:
        return None, f"not ids joined by commas: {result.stdout[:200]!r}"


def check_generation(model, binary, checkpoint):
    for number, prompt in enumerate(random_prompts(model)):
        expected, certain = library_ids(model, prompt)
        actual, fault = binary_ids(binary, checkpoint, prompt)
        same = actual is not None and actual[:certain] == expected[:certain]
        if same and certain == len(expected):
            same = actual == expected
        compared = certain - prompt.shape[1]
        report(same, f"prompt {number}: {compared} greedy ids from {checkpoint} "
                     f"{fault if actual is None else '' if same else f'{actual} not {expected}'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exported", type=pathlib.Path)
    parser.add_argument("--source", type=pathlib.Path)
    parser.add_argument("--checkpoint", type=pathlib.Path)
    parser.add_argument("--train", type=pathlib.Path)
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    exported, metadata = read_tensors(arguments.exported)
    report(all(m == {"format": "pt"} for m in metadata), 'every file says {"format": "pt"}')
    model = load_model(arguments.exported)
    if (arguments.exported / "tokenizer.json").exists():
        tokenizer = AutoTokenizer.from_pretrained(arguments.exported)
        text = "In the beginning 123, and\n  the end. Ünïcode 字"
        report(tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text,
               "transformers loads the tokenizer; text survives a round trip")
    if arguments.source:
        check_source(exported, model, arguments.source)
    if arguments.checkpoint:
        check_checkpoint(exported, arguments.checkpoint)
    if arguments.train:
        check_generation(model, arguments.train, arguments.exported)
        if arguments.checkpoint:
            check_generation(model, arguments.train, arguments.checkpoint)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
