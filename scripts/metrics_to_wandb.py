#!/usr/bin/env python3
"""Sends a run's metrics to Weights & Biases, as log.command of its config:

    "log": {"command": ["python3", "scripts/metrics_to_wandb.py", "PROJECT", "RUN_NAME"]}

Reads the lines of metrics.jsonl on standard input. Needs `pip install wandb` and `wandb login`.
"""
import html
import json
import os
import sys

import wandb


def main():
    project, name = sys.argv[1], sys.argv[2]
    run = None
    for text in sys.stdin:
        line = json.loads(text)
        kind = line.pop("kind")
        if kind == "start":
            # One run over all restarts: an id of its own, which wandb goes on with.
            run = wandb.init(project=project, name=name, id=os.environ.get("WANDB_RUN_ID", name),
                             resume="allow", config=line["config"])
        elif kind == "step":
            step = line.pop("step")
            line.pop("time")
            run.log({f"train/{key}": value for key, value in line.items() if value is not None}, step=step)
        elif kind == "evaluation":
            prefix = "validation/" + line.get("name", "all")
            run.log({f"{prefix}/loss": line["loss"], f"{prefix}/perplexity": line["perplexity"]}, step=line["step"])
        elif kind == "sample":
            prompt, text = html.escape(line["prompt"]), html.escape(line["text"])
            run.log({"sample": wandb.Html(f"<pre>{prompt}<b>{text}</b></pre>")}, step=line["step"])
        elif kind == "end":
            run.summary["end"] = line["reason"]
    if run is not None:
        run.finish()


main()
