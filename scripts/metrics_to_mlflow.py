#!/usr/bin/env python3
"""Sends a run's metrics to MLflow, as log.command of its config:

    "log": {"command": ["python3", "scripts/metrics_to_mlflow.py", "EXPERIMENT", "RUN_NAME"]}

Reads the lines of metrics.jsonl on standard input. Needs `pip install mlflow`; MLFLOW_TRACKING_URI says where to.
"""
import json
import sys

import mlflow


def flat(config, prefix=""):
    for key, value in config.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, str(value)[:500]


def main():
    mlflow.set_experiment(sys.argv[1])
    with mlflow.start_run(run_name=sys.argv[2]):
        for text in sys.stdin:
            line = json.loads(text)
            kind = line.pop("kind")
            if kind == "start":
                mlflow.log_params(dict(flat(line["config"])))
            elif kind in ("step", "evaluation"):
                prefix = "train" if kind == "step" else "validation " + line.get("name", "")
                numbers = {key: value for key, value in line.items() if isinstance(value, (int, float))}
                mlflow.log_metrics({f"{prefix.strip()}/{key}": value for key, value in numbers.items()
                                    if key != "step"}, step=line["step"])
            elif kind == "sample":
                mlflow.log_text(line["prompt"] + line["text"], f"samples/step-{line['step']:08d}.txt")
            elif kind == "end":
                mlflow.set_tag("end", line["reason"])


main()
