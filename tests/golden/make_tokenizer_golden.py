#!/usr/bin/env python3
"""Golden files of tests/tokenizer: small tokenizers, hostile lines, and the ids Hugging Face gives them.

NAME.tokenizer.json, NAME.expected.json: ids of the first lines, and a hash of the ids of each block of lines.
trained.tokenizer.json: what its trainer learns from all lines joined.
"""
import argparse
import json
import pathlib

import tokenizers

from hostile_text import hostile_lines, training_lines
from tokenizer_variants import byte_level, train, variants

LINES, FULL, BLOCK, TRAINED_SIZE = 10000, 200, 10, 700


def fnv1a(ids):
    """32-bit FNV-1a over the ids as little-endian int32, each line closed by -1."""
    value = 0x811C9DC5
    for token in ids:
        for byte in (token & 0xFFFFFFFF).to_bytes(4, "little"):
            value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(__file__).parent / "tokenizer")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    lines = hostile_lines(seed=20, count=LINES, fragments_max=3)
    with open(output / "hostile.jsonl", "w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    for name, tokenizer in variants(training_lines(seed=1, count=2000), size=512).items():
        (output / f"{name}.tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
        ids = [encoding.ids for encoding in tokenizer.encode_batch(lines, add_special_tokens=False)]
        blocks = [fnv1a([i for line in ids[begin:begin + BLOCK] for i in line + [-1]])
                  for begin in range(0, LINES, BLOCK)]
        expected = {"tokenizers": tokenizers.__version__, "block": BLOCK, "ids": ids[:FULL],
                    "hashes": "".join(f"{value:08x}" for value in blocks)}
        (output / f"{name}.expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")
    trained = train(byte_level(use_regex=True), ["".join(lines)], TRAINED_SIZE)
    (output / "trained.tokenizer.json").write_text(trained.to_str(pretty=False) + "\n", encoding="utf-8")


main()
