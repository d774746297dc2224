#!/usr/bin/env python3
"""Writes tests/golden/tensor_core_sums.txt: single sums as tensor cores make them, by MMA-Sim (pip: mmasim, torch), which was
fitted to hardware bit for bit.

  tensor_core_sums.py OUTPUT

A line a sum: what, then k codes of A, k of B, the accumulator, the result, in hexadecimal.
"""
import sys

import torch
from mmasim import nv_ptx

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "f32": torch.float32}
CASES = [("wgmma", 16, "f32", "bf16", "bf16"), ("wgmma", 16, "f32", "f16", "f16"), ("wgmma", 16, "f16", "f16", "f16"),
         ("wgmma", 32, "f32", "e4m3", "e4m3"), ("wgmma", 32, "f32", "e5m2", "e4m3"), ("wgmma", 32, "f16", "e4m3", "e4m3"),
         ("mma", 16, "f32", "bf16", "bf16"), ("mma", 16, "f32", "f16", "f16"), ("mma", 16, "f16", "f16", "f16")]
ROWS, COLUMNS = {"wgmma": 64, "mma": 16}, 8
SHOWN = 64  # of each case


def codes(tensor):
    width = tensor.element_size()
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[width]
    return [f"{int(value) & (1 << 8 * width) - 1:x}" for value in tensor.contiguous().view(kind).flatten()]


def numbers(shape, dtype, spread, generator):
    """Random signs and fractions, exponents over `spread` binades, some zeros."""
    x = torch.randn(shape, generator=generator) * torch.exp2(torch.randint(-spread, spread + 1, shape, generator=generator).float())
    x[torch.rand(shape, generator=generator) < 0.1] = 0
    return x.clamp(-240, 240).to(dtype)


def main():
    generator = torch.Generator().manual_seed(1)
    with open(sys.argv[1], "w") as out:
        for what, k, d, a, b in CASES:
            if what == "wgmma":
                unit = nv_ptx.WGMMA("Hopper", f"m64n8k{k}.{d}.{a}.{b}")
            else:
                unit = nv_ptx.MMA("Hopper", f"m16n8k{k}.{d}.{a}.{b}.{d}")
            rows = ROWS[what]
            for spread in (0, 4, 9):
                x, y = numbers((rows, k), TYPES[a], spread, generator), numbers((k, COLUMNS), TYPES[b], spread, generator)
                c = numbers((rows, COLUMNS), TYPES[d], 2 * spread, generator)
                result = unit(x, y, c)
                for i in range(SHOWN // 3):
                    row, column = i % rows, i % COLUMNS
                    line = codes(x[row]) + codes(y[:, column]) + codes(c[row, column]) + codes(result[row, column])
                    print(f"{what} {k} {d} {a} {b}", *line, file=out)


main()
