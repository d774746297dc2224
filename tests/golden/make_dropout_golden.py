#!/usr/bin/env python3
"""Writes dropout_training/: 20 AdamW steps of transformers' models in float64 that drop what the program drops.

usage: make_dropout_golden.py [--output DIR] [--only CASE]

Models and tokens are those of training/. The choice is made here from its definition in kernels/dropout/dropout.h and
kernels/attention/attention.h.
"""

import argparse
import pathlib

import numpy
import torch
import xxhash
from safetensors.torch import save_file

from cases import BATCH, TOKENS
from make_model_golden import HERE, load_case, write_json
from make_training_golden import CLIP, RECIPE, TRAINED, train, training_stream, value_of
from strict_double import build_double, strict_double

SEED = 1234  # run.seed
EMBEDDING, PROBABILITIES, ATTENTION_OUT, MLP_OUT = range(4)  # model/pass_dropout.h
RATES = {
    "gpt2": {"attn_pdrop": 0.2, "embd_pdrop": 0.1, "resid_pdrop": 0.15},
    "llama_gqa": {"attention_dropout": 0.3},
    "gpt_oss": {"attention_dropout": 0.25},
}


def philox(key, words):
    """Four arrays of 32 bits, the numbers of the counters in these four (base/random.h)."""
    low = numpy.uint64(0xFFFFFFFF)
    words = [w.copy() for w in numpy.broadcast_arrays(*(numpy.asarray(w, dtype=numpy.uint64) for w in words))]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = numpy.uint64(0xD2511F53) * words[0], numpy.uint64(0xCD9E8D57) * words[2]
        words = [(p1 >> numpy.uint64(32)) ^ words[1] ^ numpy.uint64(k0), p1 & low,
                 (p0 >> numpy.uint64(32)) ^ words[3] ^ numpy.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return words


def half_of(words, word, upper):
    """16 bits of the word of each place, its lower or upper half."""
    chosen = numpy.choose(word, words)
    return numpy.where(upper, chosen >> numpy.uint64(16), chosen & numpy.uint64(0xFFFF))


def key_of(layer, place):
    words = philox(xxhash.xxh3_64_intdigest(b"model.dropout", SEED), [layer, 0, place, 0])
    return int(words[1]) << 32 | int(words[0])


def factors(numbers, rate):
    dropped = round(rate * 65536)
    return torch.from_numpy(numpy.where(numbers >= dropped, 65536 / (65536 - dropped), 0.0))


class Choice:
    """Which step, and which layer's attention, comes next."""

    def __init__(self, model, layers):
        self.step, self.layers, self.attended = -1, layers, 0
        model.register_forward_pre_hook(lambda *_: self.begin())

    def begin(self):
        self.step, self.attended = self.step + 1, 0

    def samples(self):
        return numpy.arange(self.step * BATCH, (self.step + 1) * BATCH)

    def rows(self, shape, rate, layer, place):
        t, c = numpy.arange(shape[1])[None, :, None], numpy.arange(shape[2])[None, None, :]
        words = philox(key_of(layer, place), [t, self.samples()[:, None, None], c // 8, 0])
        return factors(half_of(words, c % 8 // 2, c % 2 == 1), rate)

    def pairs(self, probabilities, p, training):
        """In place of torch's, which attention alone calls, layer by layer."""
        assert training and probabilities.shape[0] == BATCH
        h = numpy.arange(probabilities.shape[1])[None, :, None, None]
        i = numpy.arange(probabilities.shape[2])[None, None, :, None]
        j = numpy.arange(probabilities.shape[3])[None, None, None, :]
        words = philox(key_of(self.attended, PROBABILITIES),
                       [i // 32 * 8 + i % 8, self.samples()[:, None, None, None], j // 16 * 8 + j % 8, h])
        self.attended += 1
        assert self.attended <= self.layers
        return probabilities * factors(half_of(words, i // 8 % 4, j // 8 % 2 == 1), p)


class ChosenDropout(torch.nn.Module):
    def __init__(self, choice, rate, layer, place):
        super().__init__()
        self.choice, self.rate, self.layer, self.place = choice, rate, layer, place

    def forward(self, x):
        return x * self.choice.rows(x.shape, self.rate, self.layer, self.place)


def choose_dropout(model, rates):
    layers = model.config.num_hidden_layers
    choice = Choice(model, layers)
    if "embd_pdrop" in rates:
        model.transformer.drop = ChosenDropout(choice, rates["embd_pdrop"], 0, EMBEDDING)
        for layer, block in enumerate(model.transformer.h):
            block.attn.resid_dropout = ChosenDropout(choice, rates["resid_pdrop"], layer, ATTENTION_OUT)
            block.mlp.dropout = ChosenDropout(choice, rates["resid_pdrop"], layer, MLP_OUT)
    return choice


def make(root, case):
    folder = root / case
    folder.mkdir(parents=True, exist_ok=True)
    config, state = load_case(case)
    for name, rate in RATES[case].items():
        setattr(config, name, rate)
    ids, _ = training_stream(case)
    with strict_double():
        model = build_double(config, state).train()
        choice = choose_dropout(model, RATES[case])
        torch_dropout, torch.nn.functional.dropout = torch.nn.functional.dropout, choice.pairs
        losses, norms, _, parameters = train(model, ids, CLIP[case], 0)
        torch.nn.functional.dropout = torch_dropout
    assert choice.attended == choice.layers and choice.step == RECIPE["steps"] - 1
    save_file({name: value_of(parameters, name).detach().contiguous() for name in TRAINED[case]},
              folder / "final.safetensors")
    write_json(folder / "expected.json", {"model": case, **RECIPE, "clip_grad_norm": CLIP[case],
                                          "dropout": RATES[case], "losses": losses, "grad_norms": norms})
    print(f"{case}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, norms {min(norms):.2f} to {max(norms):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "dropout_training")
    parser.add_argument("--only")
    arguments = parser.parse_args()
    for case in RATES:
        if arguments.only in (None, case):
            make(arguments.output, case)


if __name__ == "__main__":
    main()
