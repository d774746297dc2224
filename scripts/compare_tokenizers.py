#!/usr/bin/env python3
"""Compares `train tokenize` and `train tokenizer` with Hugging Face `tokenizers`, live.

usage: compare_tokenizers.py TRAIN [--lines N] [--seed N] [TOKENIZER_JSON ...]

Without files of one's own: fourteen small tokenizers in the forms of published models.
Exit 0 where every id of every line is equal.
"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/golden"))
from hostile_text import hostile_lines, training_lines  # noqa: E402
from sentencepiece_variants import sentencepiece_variants  # noqa: E402
from tokenizer_variants import byte_level, train, variants  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402


def read_documents(prefix):
    """Lists of ids, from the files as the format says."""
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    magic, version, code, sequences, documents = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version, documents) == (b"MMIDIDX\0\0", 1, sequences + 1)
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    data = pathlib.Path(f"{prefix}.bin").read_bytes()
    kind, size = {8: ("H", 2), 4: ("i", 4)}[code]
    assert sum(lengths) * size == len(data)
    at, read = 0, []
    for length in lengths:
        read.append(list(struct.unpack_from(f"<{length}{kind}", data, at)))
        at += length * size
    return read


def compare_ids(train_binary, tokenizer, file, lines, folder):
    source = folder / "lines.jsonl"
    # A document without tokens is left out of the file: every line gets something before it.
    lines = ["x" + line for line in lines]
    source.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    subprocess.run([train_binary, "tokenize", "--tokenizer", file, "--output", folder / "ids", "--overwrite",
                    "--jsonl", "text", "--no-eod", "--progress", "never", source], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    ours = read_documents(folder / "ids")
    theirs = [e.ids for e in tokenizer.encode_batch(lines, add_special_tokens=False)]
    different = [i for i in range(len(lines)) if i >= len(ours) or ours[i] != theirs[i]]
    for i in different[:3]:
        print(f"  {ascii(lines[i])}\n    ours   {ours[i] if i < len(ours) else None}\n    theirs {theirs[i]}")
    return len(different)


def compare_training(train_binary, text, size, folder):
    source, output = folder / "text.txt", folder / "trained.json"
    source.write_text(text, encoding="utf-8", newline="")
    subprocess.run([train_binary, "tokenizer", "--vocab-size", str(size), "--output", output, source], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    ours = json.loads(output.read_text())["model"]
    theirs = json.loads(train(byte_level(use_regex=True), [text], size).to_str())["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in theirs["merges"]]
    equal = ours["merges"] == merges and ours["vocab"] == theirs["vocab"]
    return equal, output


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", help="the binary")
    parser.add_argument("files", nargs="*", metavar="TOKENIZER_JSON")
    parser.add_argument("--lines", type=int, default=50000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    lines = hostile_lines(args.seed, args.lines)
    failures = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        cases = {file: Tokenizer.from_file(file) for file in args.files}
        if not cases:
            text = training_lines(args.seed, 2000)
            for kind, tokenizer in (variants(text) | sentencepiece_variants(text)).items():
                file = str(folder / f"{kind}.json")
                tokenizer.save(file)
                cases[file] = tokenizer
            equal, file = compare_training(args.train, "".join(lines), 2000, folder)
            print(f"{'equal' if equal else 'DIFFERENT'}: trainer, 2000 tokens")
            failures += not equal
            cases[str(file)] = Tokenizer.from_file(str(file))
        for file, tokenizer in cases.items():
            different = compare_ids(args.train, tokenizer, file, lines, folder)
            print(f"{'DIFFERENT' if different else 'equal'}: {pathlib.Path(file).name}, {different} of {len(lines)} lines differ")
            failures += different > 0
    return 1 if failures else 0


sys.exit(main())
