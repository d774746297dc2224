#!/usr/bin/env python3
"""Writes megatron/: token files made by megatron-core's builder and the order in which it samples them.

usage: make_megatron_golden.py [--output DIR]
"""

import argparse
import dataclasses
import json
import logging
import pathlib
import shutil
import tempfile
import typing
import warnings

import numpy
import torch
import xxhash

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

from megatron.core.datasets.blended_dataset import BlendedDataset  # noqa: E402
from megatron.core.datasets.blended_megatron_dataset_builder import (  # noqa: E402
    BlendedMegatronDatasetBuilder)
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig  # noqa: E402
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
VOCAB = 307
PARTS = ("train", "valid", "test")


class Tokenizer:
    """What GPTDataset asks of one. The pad id is none that occurs, so that no target is masked."""
    vocab_size = None
    eod = VOCAB - 1
    pad = -1
    unique_identifiers = {"class": "fixture"}


def corpora():
    """name -> (dtype, documents, each a list of sequences' lengths)."""
    random = numpy.random.RandomState(20)
    return {
        # many short documents, single tokens among them
        "small": (numpy.uint16, [[int(n)] for n in random.randint(1, 40, 61)]),
        # few documents, all longer than most windows
        "long": (numpy.int32, [[131], [257], [64], [99], [33], [201], [77]]),
        # documents of several sequences: megatron-core orders sequences, not documents
        "nested": (numpy.uint16, [[5, 9], [17], [1, 1, 1], [48, 3], [22], [7, 8, 9, 10], [31]]),
        # empty sequences, also at both ends
        "gaps": (numpy.uint16, [[0], [11], [0], [0], [29], [2], [53], [3], [1], [0]]),
    }


def write_corpora(folder):
    random = numpy.random.RandomState(21)
    for name, (dtype, documents) in corpora().items():
        builder = IndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=dtype)
        for lengths in documents:
            builder.add_document(torch.from_numpy(random.randint(0, VOCAB, sum(lengths))), lengths)
        builder.finalize(str(folder / f"{name}.idx"))


@dataclasses.dataclass
class Setting:
    name: str
    sources: typing.Any  # a corpus, or [[weight, corpus], ...]
    samples: int
    sequence_length: int
    seed: int = 1234
    split: typing.Optional[str] = None  # None: the whole file (megatron-core's blend_per_split)
    part: str = "train"


SETTINGS = [
    Setting("part_of_one_epoch", "small", 20, 16),
    Setting("exactly_one_epoch", "long", 66, 13),
    Setting("one_sample", "small", 1, 64, seed=1),
    Setting("window_longer_than_documents", "small", 30, 97, seed=7),
    Setting("window_longer_than_the_corpus", "nested", 9, 333, seed=3),
    Setting("window_of_one_token", "nested", 150, 1, seed=11),
    Setting("final_epoch_apart", "small", 200, 16, seed=42),
    Setting("final_epoch_mixed_in", "small", 150, 16, seed=42),
    Setting("many_epochs_final_apart", "long", 703, 37, seed=5),
    Setting("many_epochs_final_mixed_in", "long", 460, 37, seed=5),
    Setting("seed_zero", "small", 100, 31, seed=0),
    Setting("seed_largest", "small", 100, 31, seed=2**32 - 1),
    Setting("empty_sequences", "gaps", 40, 7, seed=2),
    Setting("split_train", "small", 120, 16, split="969,30,1"),
    Setting("split_valid", "small", 25, 8, split="80,15,5", part="valid"),
    Setting("split_test", "small", 10, 8, split="8,1,1", part="test", seed=99),
    Setting("split_rounds_half_to_even", "small", 33, 5, split="1,1", part="valid"),
    Setting("split_of_reals", "long", 90, 12, split="0.7,0.2,0.1", seed=8),
    Setting("blend_of_two", [[0.3, "small"], [0.7, "long"]], 90, 16, seed=6),
    Setting("blend_of_equals", [[1.0, "small"], [1.0, "long"], [1.0, "nested"]], 100, 8, seed=6),
    Setting("blend_of_three_uneven", [[5, "long"], [0.25, "nested"], [11, "small"]], 331, 21),
    Setting("blend_of_four_split",
            [[0.1, "small"], [0.2, "long"], [0.3, "nested"], [0.4, "small"]], 157, 9,
            split="9,1", seed=77),
    Setting("blend_of_two_valid", [[2, "small"], [3, "long"]], 41, 6, split="7,3", part="valid"),
    Setting("blend_epochs_from_surplus", [[1, "small"], [1, "gaps"]], 1994, 10, seed=13),
    Setting("one_weighted_source_whole_file", [[3.5, "small"]], 77, 16, seed=4),
    Setting("one_weighted_source_split", [[3.5, "small"]], 77, 16, seed=4, split="9,1"),
]


def build(setting, folder):
    weighted = not isinstance(setting.sources, str)
    names = [name for _, name in setting.sources] if weighted else [setting.sources]
    weights = [float(weight) for weight, _ in setting.sources] if weighted else None
    blend = ([str(folder / name) for name in names], weights)
    part = PARTS.index(setting.part)
    common = dict(
        random_seed=setting.seed, sequence_length=setting.sequence_length, tokenizer=Tokenizer(),
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
        create_attention_mask=False)
    if setting.split is None:
        per_split = [blend if i == part else None for i in range(len(PARTS))]
        config = GPTDatasetConfig(blend_per_split=per_split, **common)
    else:
        config = GPTDatasetConfig(blend=blend, split=setting.split, **common)
        # The other parts' order does not touch this one's, and an empty part never ends.
        config.split_matrix = [m if i == part else None for i, m in enumerate(config.split_matrix)]
    sizes = [setting.samples] * len(PARTS)
    builder = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config)
    return builder.build()[part]


def describe(array, dtype, head=50):
    flat = numpy.ascontiguousarray(array).astype(dtype)
    assert (flat == array).all()
    return {"shape": list(array.shape), "dtype": numpy.dtype(dtype).name,
            "head": flat.reshape(-1)[:head].tolist(),
            "xxh3_128": xxhash.xxh3_128_hexdigest(flat.tobytes())}


def describe_dataset(dataset):
    per_epoch = int(dataset.dataset.sequence_lengths[dataset.indices].sum())
    epochs = len(dataset.document_index) // len(dataset.indices)
    sans_final = ((epochs - 1) * per_epoch - 1) // dataset.config.sequence_length
    per_epoch_samples = (per_epoch - 1) // dataset.config.sequence_length
    apart = epochs > 1 and dataset.num_samples - sans_final < int(0.80 * per_epoch_samples)
    return {
        "corpus": pathlib.Path(dataset.dataset_path).name,
        "sequences": [int(dataset.indices[0]), int(dataset.indices[-1]) + 1],
        "requested": dataset.num_samples, "epochs": epochs, "final_epoch_apart": bool(apart),
        "document_index": describe(dataset.document_index, "int32"),
        "sample_index": describe(dataset.sample_index, "int32"),
        "shuffle_index": describe(dataset.shuffle_index, "uint32"),
    }


def describe_setting(setting, folder):
    top = build(setting, folder)
    result = dataclasses.asdict(setting)
    blended = isinstance(top, BlendedDataset)
    result["datasets"] = [describe_dataset(d) for d in (top.datasets if blended else [top])]
    for word, apart in (("final_apart", True), ("epoch_apart", True), ("mixed_in", False)):
        if setting.name.endswith(word):  # a name that promises a case must show it
            assert result["datasets"][0]["final_epoch_apart"] == apart, setting.name
            assert result["datasets"][0]["epochs"] > 1, setting.name
    result["blend"] = {
        "size": len(top), "dataset_index": describe(top.dataset_index, "int16"),
        "dataset_sample_index": describe(top.dataset_sample_index, "int64")} if blended else None
    rows = []
    for i in range(setting.samples):
        sample = top[i]
        assert bool((sample["tokens"][1:] == sample["labels"][:-1]).all())
        rows.append(numpy.append(sample["tokens"].numpy(), sample["labels"].numpy()[-1]))
    result["windows"] = describe(numpy.stack(rows), "int32", head=setting.sequence_length + 1)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "megatron")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    write_corpora(output)
    with tempfile.TemporaryDirectory() as scratch:  # the library writes its caches beside the files
        for name in corpora():
            for end in (".bin", ".idx"):
                shutil.copy(output / (name + end), scratch)
        settings = [describe_setting(setting, pathlib.Path(scratch)) for setting in SETTINGS]
    lines = ",\n".join(json.dumps(s, separators=(",", ":")) for s in settings)
    (output / "order.json").write_text("[\n" + lines + "\n]\n")
    for s in settings:
        parts = ", ".join(f"{d['corpus']} {d['requested']} of {d['shuffle_index']['shape'][0]} in "
                          f"{d['epochs']} epochs{' (last apart)' if d['final_epoch_apart'] else ''}"
                          for d in s["datasets"])
        print(f"{s['name']:32} {'blend of ' if s['blend'] else ''}{parts}")


if __name__ == "__main__":
    main()
