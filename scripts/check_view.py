#!/usr/bin/env python3
"""Opens a checkpoint's model.h5 with h5py: every tensor whole, of the manifest's shape, with the bytes of its shards; where
a file of shards is missing, NaN stands and nothing else. Needs h5py, numpy, xxhash.

usage: scripts/check_view.py STEP_FOLDER
"""

import sys

if sys.argv[1:2] and sys.argv[1].startswith("-"):
    print(__doc__)
    sys.exit(0 if sys.argv[1] in ("-h", "--help") else 2)

import json
import pathlib
import shutil
import tempfile

import h5py
import numpy
import xxhash


def box_of(shard):
    return tuple(slice(begin, begin + size) for begin, size in zip(shard["offset"], shard["shape"]))


def check(condition, text):
    if not condition:
        sys.exit(f"check_view: {text}")


def main():
    folder = pathlib.Path(sys.argv[1])
    tensors = json.loads((folder / "manifest.json").read_text())["tensors"]
    files = set()
    with h5py.File(folder / "model.h5") as view:
        for name, tensor in tensors.items():
            values = view[name][()]
            check(list(values.shape) == tensor["shape"], f"{name}: {values.shape}")
            check(not numpy.isnan(values).any(), f"{name}: holds NaN")
            for shard in tensor["shards"]:
                files.add(shard["file"])
                part = numpy.ascontiguousarray(values[box_of(shard)])
                check(xxhash.xxh3_128_hexdigest(part.tobytes()) == shard["xxh3_128"], f"{name}: {shard['offset']} differs")
    missing = 0
    with tempfile.TemporaryDirectory() as scratch:
        copy = pathlib.Path(scratch) / "step"
        shutil.copytree(folder, copy)
        gone = max(files)
        (copy / gone).unlink()
        with h5py.File(copy / "model.h5") as view:
            for name, tensor in tensors.items():
                if 0 in tensor["shape"] or not tensor["shape"]:
                    continue
                values = view[name][()]
                for shard in tensor["shards"]:
                    nan = numpy.isnan(values[box_of(shard)])
                    lost = shard["file"] == gone
                    check(nan.all() if lost else not nan.any(), f"{name}: without {gone}, {shard['offset']} of {shard['file']}")
                    missing += lost
    print(f"{folder}: {len(tensors)} tensors whole in h5py {h5py.__version__}; without {gone} its {missing} boxes read as NaN")


if __name__ == "__main__":
    main()
