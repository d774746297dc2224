#!/usr/bin/env python3
"""Writes nf4/tensors.safetensors: tensors, and what bitsandbytes makes of them in NF4 with blocks of 64, not nested.

NAME.x; NAME.codes (bytes, as numbers) and NAME.absmax of quantize_4bit; NAME.f32 and NAME.bf16 of dequantize_4bit.

usage: make_nf4_golden.py [--output DIR]
"""

import argparse
import pathlib

import torch
from bitsandbytes.functional import dequantize_4bit, get_4bit_type, quantize_4bit
from safetensors.torch import save_file

from make_model_golden import generator

HERE = pathlib.Path(__file__).resolve().parent
LARGEST = torch.finfo(torch.float32).max


def normal(name, count):
    return torch.randn(count, generator=generator("nf4", name))


def of_blocks(name, factors):
    return normal(name, 64 * len(factors)) * torch.tensor(factors, dtype=torch.float32).repeat_interleave(64)


def midpoints():
    levels = get_4bit_type("nf4", device="cpu")
    return (levels[:-1] + levels[1:]) / 2


def ties():
    """Midpoints between levels and their neighbours, in blocks whose factor is a power of two."""
    levels, middle = get_4bit_type("nf4", device="cpu"), midpoints()
    up, down = (torch.nextafter(middle, torch.tensor(to)) for to in (2.0, -2.0))
    block = torch.cat([middle, up, down, levels, torch.tensor([-0.0, 1e-30, -1.0])])
    return torch.cat([block, block * 2**-9, block * 2**40])


def huge():
    x = of_blocks("huge", [1e37, 1.0])
    x[5], x[70] = -LARGEST, LARGEST
    return x


def beside_midpoints():
    """A block and a last one whose codes are others where a product with 1 / absmax is a division, or the reverse."""
    middle, kept = midpoints(), []
    for most in 1 + torch.rand(200, generator=generator("nf4", "most")):
        x = middle * most
        differ = x[(x * (1 / most) <= middle) != (x / most <= middle)]
        if len(differ) > 1:
            kept.append(torch.cat([most[None], differ]))
    block = max(kept, key=len)
    return torch.cat([block, torch.zeros(64 - len(block)), block])


def cases():
    yield "random", of_blocks("random", [1.0, 0.02, 3e-5, 700.0, 1.0, 1.0])
    yield "tiny", of_blocks("tiny", [1e-30, 2e-38, 3e-39, 3e-45, 0.0, 0.0])
    yield "huge", huge()
    yield "ties", ties()
    yield "beside_midpoints", beside_midpoints()
    for tail in (1, 2, 37, 63):
        yield f"tail_{tail}", normal(f"tail {tail}", 64 + tail)
    yield "tail_zero", torch.cat([normal("tail zero", 64), torch.zeros(10)])
    yield "tail_tiny", 3e-39 * normal("tail tiny", 50)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=HERE)
    output = parser.parse_args().output / "nf4"
    output.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, x in cases():
        codes, state = quantize_4bit(x, blocksize=64, compress_statistics=False, quant_type="nf4")
        tensors[f"{name}.x"] = x
        tensors[f"{name}.codes"] = codes.flatten().float()
        tensors[f"{name}.absmax"] = state.absmax.flatten()
        for key, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
            state.dtype = dtype
            tensors[f"{name}.{key}"] = dequantize_4bit(codes, state).flatten().float()
    save_file(tensors, output / "tensors.safetensors")


if __name__ == "__main__":
    main()
