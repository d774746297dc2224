#!/usr/bin/env python3
"""Runs the golden trainings through the binary and compares every step with PyTorch in float64.

usage: check_training.py TRAIN [--ranks N] [--set KEY=VALUE ...]

Losses and gradient norms agree to 1e-5 relative, learning rates to 1e-14. With --ranks the run is
started by scripts/run.sh. Needs nothing but Python.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden" / "training"
TOLERANCES = {"loss": ("losses", 1e-5), "grad_norm": ("grad_norms", 1e-5),
              "lr": ("learning_rates", 1e-14)}


def run(arguments, case, directory):
    command = [str(GOLDEN / case / "config.json"), "--set", f"run.directory={directory}"]
    for setting in arguments.set:
        command += ["--set", setting]
    if arguments.ranks:
        command = [str(ROOT / "scripts" / "run.sh"), "-n", str(arguments.ranks)] + command
    else:
        command = [str(arguments.train.resolve())] + command
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{case}: exit {result.returncode}\n{result.stderr[-2000:]}")
    lines = (pathlib.Path(directory) / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == "step"]


def worst_error(steps, expected, key):
    values, tolerance = expected[TOLERANCES[key][0]], TOLERANCES[key][1]
    errors = [abs(step[key] - value) / abs(value) for step, value in zip(steps, values)]
    return max(errors), tolerance


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=pathlib.Path)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    failed = False
    for case in sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()):
        expected = json.loads((GOLDEN / case / "expected.json").read_text())
        with tempfile.TemporaryDirectory() as scratch:
            steps = run(arguments, case, pathlib.Path(scratch) / "run")
        if [step["step"] for step in steps] != list(range(1, expected["steps"] + 1)):
            print(f"FAILED {case}: steps {[step['step'] for step in steps]}")
            failed = True
            continue
        for key in TOLERANCES:
            error, tolerance = worst_error(steps, expected, key)
            passed = error <= tolerance
            failed |= not passed
            print(f"{'ok    ' if passed else 'FAILED'} {case}: {key} off by {error:.1e} relative")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
