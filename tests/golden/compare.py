#!/usr/bin/env python3
"""Compares freshly made goldens with the committed ones.

usage: compare.py FRESH [COMMITTED]

Integers, strings and token files must be equal; float64 numbers agree to 1e-9, fp32 tensors to 1e-6,
so that another CPU's order of summation is no difference. Only files that FRESH holds are compared.
"""

import json
import math
import pathlib
import sys

import torch
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).resolve().parent
VERSION = "transformers_version"  # of the library that saved a config: says nothing of the model


def json_differences(fresh, committed, where):
    if isinstance(fresh, float) and isinstance(committed, float):
        same = math.isclose(fresh, committed, rel_tol=1e-9, abs_tol=1e-12)
    elif type(fresh) is not type(committed):
        same = False
    elif isinstance(fresh, dict):
        if fresh.keys() != committed.keys():
            return [f"{where}: keys {sorted(fresh.keys() ^ committed.keys())}"]
        return [d for key in fresh if key != VERSION
                for d in json_differences(fresh[key], committed[key], f"{where}.{key}")]
    elif isinstance(fresh, list):
        if len(fresh) != len(committed):
            return [f"{where}: {len(fresh)} elements, {len(committed)} committed"]
        return [d for i, pair in enumerate(zip(fresh, committed))
                for d in json_differences(*pair, f"{where}[{i}]")]
    else:
        same = fresh == committed
    return [] if same else [f"{where}: {fresh!r}, {committed!r} committed"]


def tensor_differences(fresh_path, committed_path):
    fresh, committed = load_file(fresh_path), load_file(committed_path)
    if fresh.keys() != committed.keys():
        return [f"tensors {sorted(fresh.keys() ^ committed.keys())}"]
    found = []
    for name, tensor in fresh.items():
        other = committed[name]
        if tensor.dtype != other.dtype or tensor.shape != other.shape:
            found.append(f"{name}: {tensor.dtype} {tuple(tensor.shape)}")
            continue
        tolerance = 1e-6 if tensor.dtype == torch.float32 else 1e-9
        difference = (tensor.double() - other.double()).norm()
        # The floor is for gradients that are zero but for rounding, as a key bias without RoPE.
        if not difference <= tolerance * other.double().norm() + 1e-12:
            found.append(f"{name}: off by {difference:.3e}")
    return found


def file_differences(fresh, committed):
    if not committed.exists():
        return ["not committed"]
    if fresh.suffix == ".json":
        return json_differences(json.loads(fresh.read_text()), json.loads(committed.read_text()), "")
    if fresh.suffix == ".safetensors":
        return tensor_differences(fresh, committed)
    return [] if fresh.read_bytes() == committed.read_bytes() else ["other bytes"]


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    fresh_root = pathlib.Path(sys.argv[1])
    committed_root = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else HERE
    files = sorted(path for path in fresh_root.rglob("*") if path.is_file())
    failed = 0
    for path in files:
        relative = path.relative_to(fresh_root)
        for difference in file_differences(path, committed_root / relative):
            print(f"{relative}: {difference}")
            failed += 1
    print(f"{len(files)} golden files compared, {failed} differences")
    sys.exit(1 if failed or not files else 0)


if __name__ == "__main__":
    main()
