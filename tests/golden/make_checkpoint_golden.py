#!/usr/bin/env python3
"""Writes checkpoint/FORMAT/values.json: shape and XXH3-128 of every tensor, as h5py reads it whole from model.h5.

The checkpoints themselves are never made again: each is what the program wrote when that format was new, and every
later version must read it.
"""

import argparse
import json
import pathlib

import h5py
import xxhash


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    here = pathlib.Path(__file__).parent / "checkpoint"
    parser.add_argument("--output", type=pathlib.Path, default=here)
    output = parser.parse_args().output
    for folder in sorted(here.glob("format-*")):
        view = next(folder.glob("step-*")) / "model.h5"
        values = {}
        with h5py.File(view) as file:

            def take(name, entry):
                if isinstance(entry, h5py.Dataset):
                    values[name] = {"shape": list(entry.shape), "xxh3_128": xxhash.xxh3_128_hexdigest(entry[()].tobytes())}

            file.visititems(take)
        target = output / folder.name
        target.mkdir(parents=True, exist_ok=True)
        (target / "values.json").write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
