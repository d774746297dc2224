#!/usr/bin/env python3
"""Writes fp8_codes/codes.json: hashes of the fp8 codes of every bf16 value and of 10^8 fp32 values, on which torch and
ml_dtypes agree.

Their conversions make NaN (e4m3) or infinity (e5m2) of what is beyond the largest value; a training step's codes stay
below it (as Transformer Engine's do), so values are clamped first. Every NaN has the code 0x7f.

usage: make_fp8_codes_golden.py [--output DIR]
"""

import argparse
import pathlib

import ml_dtypes
import numpy
import torch
import xxhash

from make_model_golden import write_json

HERE = pathlib.Path(__file__).resolve().parent
FORMATS = {
    "e4m3": (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn, 448.0),
    "e5m2": (torch.float8_e5m2, ml_dtypes.float8_e5m2, 57344.0),
}
COUNTS = [50_000, 100_000_000]  # the first of them, and all
PIECE = 2_000_000


def mixed(x):
    """MurmurHash3's last steps, of 32 bits."""
    x = x ^ (x >> numpy.uint32(16))
    x = x * numpy.uint32(0x85EBCA6B)
    x = x ^ (x >> numpy.uint32(13))
    x = x * numpy.uint32(0xC2B2AE35)
    return x ^ (x >> numpy.uint32(16))


def random_values(first, count):
    """Any sign and fraction, exponents where codes are and beyond."""
    i = numpy.arange(first, first + count, dtype=numpy.uint32)
    exponent = numpy.uint32(127 - 26) + mixed(i ^ numpy.uint32(0x9E3779B9)) % numpy.uint32(46)
    return ((mixed(i) & numpy.uint32(0x807FFFFF)) | (exponent << numpy.uint32(23))).view(numpy.float32)


def codes_of(values, torch_type, numpy_type, largest):
    """Of fp32 values."""
    clamped = numpy.clip(values, -largest, largest)
    codes = torch.from_numpy(clamped).to(torch_type).view(torch.uint8).numpy().copy()
    other = clamped.astype(numpy_type).view(numpy.uint8).copy()
    for each in (codes, other):
        each[numpy.isnan(values)] = 0x7F
    if not numpy.array_equal(codes, other):
        where = numpy.flatnonzero(codes != other)[0]
        raise SystemExit(f"{values[where]!r}: torch has code {codes[where]}, ml_dtypes {other[where]}")
    return codes


def hashes(pieces, format_of):
    found = xxhash.xxh3_128()
    for piece in pieces:
        found.update(codes_of(piece, *format_of).tobytes())
    return found.hexdigest()


def random_pieces(count):
    for first in range(0, count, PIECE):
        yield random_values(first, min(PIECE, count - first))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=HERE)
    directory = parser.parse_args().output / "fp8_codes"
    directory.mkdir(parents=True, exist_ok=True)
    every_bf16 = (numpy.arange(65536, dtype=numpy.uint32) << numpy.uint32(16)).view(numpy.float32)
    write_json(directory / "codes.json", {
        "bf16": {name: hashes([every_bf16], of) for name, of in FORMATS.items()},
        "random": [{"count": count, **{name: hashes(random_pieces(count), of) for name, of in FORMATS.items()}}
                   for count in COUNTS],
    })


if __name__ == "__main__":
    main()
