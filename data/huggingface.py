#!/usr/bin/env python3
"""Streams a data set of the Hugging Face hub as JSON lines, {"text": ...}, one document each; stores nothing of it.

usage: data/huggingface.py --dataset NAME [--config NAME] [--split train] [--key text] [--skip N] [--documents N]
                           [--validation FILE [--validation-every 200]] > documents.jsonl

The order is the data set's own. With --validation each N-th document goes to FILE in place of standard output. Needs the
package `datasets` and the network; HF_TOKEN for data sets that want an account.
"""

import argparse
import itertools
import json
import sys


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="as on the hub, e.g. HuggingFaceFW/fineweb")
    parser.add_argument("--config", help="its subset, e.g. sample-10BT")
    parser.add_argument("--split", default="train")
    parser.add_argument("--key", default="text", help="the column that holds a document's text")
    parser.add_argument("--skip", type=int, default=0, help="documents passed over first")
    parser.add_argument("--documents", type=int, help="how many at most; all")
    parser.add_argument("--validation", help="a file for documents to validate with")
    parser.add_argument("--validation-every", type=int, default=200)
    return parser.parse_args()


def main():
    wanted = options()
    try:
        import datasets
    except ImportError:
        sys.exit("data/huggingface.py: no package `datasets` here: pip install datasets (data/huggingface.sh does it)")
    rows = datasets.load_dataset(wanted.dataset, wanted.config, split=wanted.split, streaming=True)
    end = None if wanted.documents is None else wanted.skip + wanted.documents
    validation = open(wanted.validation, "w", encoding="utf-8") if wanted.validation else None
    written = 0
    for row in itertools.islice(iter(rows), wanted.skip, end):
        text = row.get(wanted.key)
        if not isinstance(text, str):
            sys.exit(f"data/huggingface.py: no text under {wanted.key!r}; a row has {', '.join(map(repr, row))} (--key)")
        aside = validation is not None and written % wanted.validation_every == wanted.validation_every - 1
        (validation if aside else sys.stdout).write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        written += 1
    if validation is not None:
        validation.close()
    print(f"{written:,} documents of {wanted.dataset}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        # Who reads had enough.
        sys.stderr.close()
