#!/usr/bin/env python3
"""Writes generation/greedy.json and generation/filters.json from transformers' generate and warpers.

usage: make_generation_golden.py [--output DIR]
"""

import argparse
import pathlib

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import (TemperatureLogitsWarper, TopKLogitsWarper,
                                                    TopPLogitsWarper)

from cases import cases
from make_model_golden import HERE, generator, load_case, random_ids, write_json
from strict_double import build_double, strict_double

NEW_TOKENS = 24
# An fp32 run must not fall on the other side of a near tie.
GAP_MIN = 1e-3


def greedy(model, prompt, end_token):
    output = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=end_token, pad_token_id=0,
        return_dict_in_generate=True, output_logits=True)
    best = torch.cat(output.logits).topk(2).values
    return output.sequences[0, len(prompt):].tolist(), (best[:, 0] - best[:, 1]).min().item()


def greedy_case(case):
    config, state = load_case(case)
    library = AutoModelForCausalLM.from_pretrained(HERE / "model" / case)  # fp32, default attention
    library.set_experts_implementation("eager")  # the default refuses rows that are no multiple of 16 bytes
    for attempt in range(50):
        prompt = random_ids("prompt", case, attempt, count=1, length=5 + attempt % 4)[0].tolist()
        with strict_double():
            model = build_double(config, state)
            model.generation_config.eos_token_id = None
            ids, gap = greedy(model, prompt, None)
        if gap >= GAP_MIN and len(set(ids)) >= 4:
            break
    else:
        raise SystemExit(f"{case}: no prompt without a near tie")
    library.generation_config.eos_token_id = None
    assert greedy(library, prompt, None)[0] == ids, case
    # An end token that does appear, as late as possible for the first time; it is part of the output.
    end_token = max(set(ids), key=ids.index)
    with strict_double():
        stopped, _ = greedy(model, prompt, end_token)
    assert stopped == ids[:ids.index(end_token) + 1]
    print(f"{case}: {len(ids)} ids, {len(stopped)} until {end_token}, smallest gap {gap:.4f}")
    return {"model": case, "prompt": prompt, "ids": ids, "gap": gap, "end_token": end_token,
            "ids_until_end": stopped}


FILTERS = [  # temperature, top_k (0 = off), top_p (1 = off)
    (1.0, 0, 1.0), (0.7, 0, 1.0), (2.5, 0, 1.0), (1.0, 1, 1.0), (1.0, 5, 1.0), (0.8, 40, 1.0),
    (1.0, 1000, 1.0), (1.0, 0, 0.9), (1.0, 0, 0.5), (1.0, 0, 0.0), (1.0, 0, 0.999), (0.7, 10, 0.8),
    (1.5, 20, 0.95), (0.1, 50, 0.3),
]


def filtered(logits, temperature, top_k, top_p):
    scores = logits[None]
    if temperature != 1.0:
        scores = TemperatureLogitsWarper(temperature)(None, scores)
    if top_k > 0:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1.0:
        scores = TopPLogitsWarper(top_p)(None, scores)
    probabilities = scores[0].softmax(dim=-1)
    ids = torch.nonzero(scores[0] > -torch.inf)[:, 0]
    return ids.tolist(), probabilities[ids].tolist()


def filter_cases():
    """Two vectors of fp32 logits: one smooth, one with ties (which top-k keeps all of)."""
    smooth = (3 * torch.randn(64, generator=generator("filter", "smooth"))).float()
    ties = smooth.clone()[:24]
    ties[[3, 9, 17, 20]] = ties.max() - 1
    result = []
    for name, logits, settings in (("smooth", smooth, FILTERS),
                                   ("ties", ties, [s for s in FILTERS if s[2] == 1.0])):
        for temperature, top_k, top_p in settings:
            ids, probabilities = filtered(logits.double(), temperature, top_k, top_p)
            result.append({"logits": name, "temperature": temperature, "top_k": top_k,
                           "top_p": top_p, "ids": ids, "probabilities": probabilities})
    return {"logits": {"smooth": smooth.tolist(), "ties": ties.tolist()}, "settings": result}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "generation")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    write_json(arguments.output / "greedy.json", [greedy_case(case) for case in cases()])
    write_json(arguments.output / "filters.json", filter_cases())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
