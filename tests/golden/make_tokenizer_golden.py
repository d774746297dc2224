#!/usr/bin/env python3
"""Golden files of tests/tokenizer: small tokenizers, hostile lines, and the ids Hugging Face gives them.

NAME.tokenizer.json, NAME.expected.json: ids of the first lines, and a hash of the ids of each block of lines; for
tokenizers over characters "texts" too, a hash of each block of lines as decoded.
trained.tokenizer.json: what its trainer learns from all lines joined.
"""
import argparse
import json
import pathlib

import tokenizers

from hostile_text import hostile_lines, training_lines
from sentencepiece_variants import sentencepiece_variants
from tokenizer_variants import byte_level, train, variants

LINES, FULL, BLOCK, TRAINED_SIZE = 10000, 200, 10, 700


def fnv1a(data):
    """32-bit FNV-1a over bytes."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def block_hashes(lines):
    """Of lines of bytes, each block's, in hex."""
    return "".join(f"{fnv1a(b''.join(lines[begin:begin + BLOCK])):08x}" for begin in range(0, len(lines), BLOCK))


def line_of_ids(ids):
    """Little-endian int32, closed by -1."""
    return b"".join((token & 0xFFFFFFFF).to_bytes(4, "little") for token in ids + [-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(__file__).parent / "tokenizer")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    lines = hostile_lines(seed=20, count=LINES, fragments_max=3)
    with open(output / "hostile.jsonl", "w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    text = training_lines(seed=1, count=2000)
    over_characters = sentencepiece_variants(text)
    for name, tokenizer in (variants(text, size=512) | over_characters).items():
        (output / f"{name}.tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
        ids = [encoding.ids for encoding in tokenizer.encode_batch(lines, add_special_tokens=False)]
        expected = {"tokenizers": tokenizers.__version__, "block": BLOCK, "ids": ids[:FULL],
                    "hashes": block_hashes([line_of_ids(line) for line in ids])}
        if name in over_characters:
            texts = tokenizer.decode_batch(ids, skip_special_tokens=False)
            expected["texts"] = block_hashes([line.encode() + b"\n" for line in texts])
        (output / f"{name}.expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")
    trained = train(byte_level(use_regex=True), ["".join(lines)], TRAINED_SIZE)
    (output / "trained.tokenizer.json").write_text(trained.to_str(pretty=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
