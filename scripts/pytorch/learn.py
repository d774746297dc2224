"""Trains one model by `train` and by PyTorch on the same samples, and compares what they learn.

Started by scripts/compare_learning.sh, whose header says what is compared.
"""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

import numpy

import learn_report
import machine

HERE = pathlib.Path(__file__).resolve().parent
HEAD_SIZE = 32


class RunFailed(Exception):
    pass


def model_keys(width, layers, sequence, experts):
    heads = width // HEAD_SIZE
    kv_heads = heads // 2 if heads % 2 == 0 else heads
    keys = {
        "model_type": "llama", "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "intermediate_size": math.ceil(width * 8 / 3 / 32) * 32, "vocab_size": 257,
        "max_position_embeddings": sequence, "tie_word_embeddings": False,
        "bos_token_id": None, "eos_token_id": 256,
    }
    if experts:
        count, chosen, ffn = experts
        keys.update(model_type="qwen3_moe", head_dim=HEAD_SIZE, num_experts=count, num_experts_per_tok=chosen,
                    moe_intermediate_size=ffn, norm_topk_prob=True)
    return keys


class Comparison:
    def __init__(self, arguments):
        self.arguments = arguments
        self.work = arguments.output / "work"
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        # A copy, so that a build in the meantime cannot change what is compared.
        self.train = shutil.copy2(arguments.train, self.work / "train-binary")
        a = arguments
        self.steps = math.ceil(a.tokens / (a.batch * a.sequence))
        self.config = {
            "run": {"steps": self.steps, "seed": 1234, "threads_per_rank": a.threads},
            "model": model_keys(*a.size, a.sequence, a.experts),
            "init": {"weights": str(self.work / "initial")},
            "tokenizer": "byte",
            "data": {"train": str(self.work / "train"),
                     "validation": str(self.work / "validation"), "sequence_length": a.sequence},
            "batch": {"micro": a.batch, "global": a.batch},
            "optimizer": {"lr": a.lr, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1,
                          "clip_grad_norm": 1.0},
            "lr_schedule": {"kind": "cosine", "warmup_steps": min(100, self.steps // 10),
                            "min_lr": a.lr / 10},
            "checkpoint": {"interval_steps": self.steps},
            "evaluation": {"interval_steps": math.ceil(self.steps / 10)},
        }

    def call(self, *command):
        result = subprocess.run([str(part) for part in command], cwd=machine.ROOT, text=True,
                                capture_output=True)
        if result.returncode != 0:
            raise RunFailed(f"{' '.join(map(str, command))}: exit {result.returncode}\n"
                            f"{result.stderr.strip()[-1000:]}")
        return result.stdout

    def prepare_text(self):
        """The last 5 % of the lines are held out."""
        if self.arguments.text:
            text = self.arguments.text.read_bytes()
        else:
            path = os.environ["PATH"] + ":/usr/games"
            result = subprocess.run(["bible", "-f", "Gen1:1-Rev22:21"], capture_output=True,
                                    env=dict(os.environ, PATH=path))
            text = result.stdout
            if len(text) < 4_000_000:
                raise RunFailed("`bible` printed no Bible; scripts/setup.sh installs it, or --text")
        lines = text.splitlines(keepends=True)
        cut = len(lines) - len(lines) // 20
        for part, content in (("train", lines[:cut]), ("validation", lines[cut:])):
            (self.work / f"{part}.txt").write_bytes(b"".join(content))
            self.call(self.train, "tokenize", "--tokenizer", "byte", "--output", self.work / part,
                      self.work / f"{part}.txt")

    def save_samples(self, part, count, *settings):
        """What `train data` says a run will see, as an array for the other side."""
        samples = numpy.zeros((count, self.arguments.sequence + 1), dtype=numpy.int16)
        command = [self.train, "data", str(self.work / "plain.json"), "--json",
                   "--count", str(count), *(f"--set={setting}" for setting in settings)]
        with (self.work / "data.log").open("w") as log, subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, cwd=machine.ROOT) as process:
            rows = 0
            for rows, line in enumerate(process.stdout, 1):
                # The text beside the tokens may be cut within a character; it is not read.
                tokens = line[line.index(b'"tokens":') + 9:line.index(b"]") + 1]
                samples[rows - 1] = json.loads(tokens)
        if process.returncode != 0 or rows != count:
            raise RunFailed(f"train data: exit {process.returncode} after {rows} of {count}\n"
                            + (self.work / "data.log").read_text()[-1000:])
        numpy.save(self.work / f"{part}.npy", samples)

    def prepare(self):
        self.prepare_text()
        config = self.config
        # `model` stands in the file for the other side; ours takes it with the weights.
        (self.work / "config.json").write_text(json.dumps(config, indent=1))
        plain = dict(config, init=None, run=dict(config["run"], directory=str(self.work / "none")))
        (self.work / "plain.json").write_text(json.dumps(plain, indent=1))
        self.save_samples("train", self.steps * self.arguments.batch)
        facts = json.loads((self.work / "validation.json").read_text())
        windows = (facts["tokens"] - 1) // self.arguments.sequence
        self.save_samples("validation", windows, f"data.train={self.work / 'validation'}",
                          "data.order=sequential",
                          f"run.steps={math.ceil(windows / self.arguments.batch)}")
        config["evaluation"]["batches"] = math.ceil(windows / self.arguments.batch)
        (self.work / "config.json").write_text(json.dumps(config, indent=1))
        self.pytorch("initial", self.work / "initial")

    def pytorch(self, mode, directory, *more):
        environment = dict(os.environ, OMP_NUM_THREADS=str(self.arguments.threads))
        with (self.work / f"{directory.name}.log").open("w") as log:
            result = subprocess.run([sys.executable, str(HERE / "learn_worker.py"), mode,
                                     str(directory), str(self.work / "config.json"), *more],
                                    env=environment, stderr=log)
        if result.returncode != 0:
            raise RunFailed(f"PyTorch: exit {result.returncode}\n" + (
                self.work / f"{directory.name}.log").read_text()[-1000:])

    def run_one(self, name):
        """Trains; returns the lines that the run wrote, and its seconds."""
        side, dtype = name.split("-")
        directory, begin = self.work / name, time.monotonic()
        if side == "pytorch":
            self.pytorch("train", directory, dtype)
        else:
            config = {key: value for key, value in self.config.items() if key != "model"}
            config["run"] = dict(config["run"], directory=str(directory))
            config["precision"] = {"compute": dtype}
            path = self.work / f"{name}.json"
            path.write_text(json.dumps(config, indent=1))
            self.call(self.train, path)
        seconds = time.monotonic() - begin
        print(f"{name}: done after {seconds:,.0f} s", file=sys.stderr)
        return [json.loads(line)
                for line in (directory / "metrics.jsonl").read_text().splitlines()], seconds

    def report_progress(self, done):
        while not done.wait(60):
            parts = []
            for name in self.arguments.runs:
                try:
                    last = (self.work / name / "metrics.jsonl").read_bytes().rsplit(b"\n", 2)[1]
                    line = json.loads(last)
                except (OSError, IndexError, ValueError):
                    continue
                if "loss" in line:
                    parts.append(f"{name} {line['step']}/{self.steps} {line['loss']:.4f}")
            print("  " + "   ".join(parts), file=sys.stderr)

    def run(self):
        a = self.arguments
        begin = time.monotonic()
        self.prepare()
        print(f"{self.steps:,} steps of {a.batch} x {a.sequence} tokens; prepared in "
              f"{time.monotonic() - begin:.0f} s", file=sys.stderr)
        done = threading.Event()
        progress = threading.Thread(target=self.report_progress, args=(done,), daemon=True)
        progress.start()
        try:
            with concurrent.futures.ThreadPoolExecutor(a.at_once) as pool:
                found = dict(zip(a.runs, pool.map(self.run_one, a.runs), strict=True))
        finally:
            done.set()
        config = {key: value for key, value in self.config.items() if key not in ("init", "run")}
        config["data"] = {"sequence_length": a.sequence, "order": "shuffled"}
        data = {
            "machine": machine.describe(self.train, a.threads),
            "command": f"scripts/compare_learning.sh --tokens {a.tokens} "
                       f"--size {a.size[0]}x{a.size[1]} "
                       + (f"--experts {','.join(map(str, a.experts))} " if a.experts else "")
                       + f"--sequence {a.sequence} --batch {a.batch} "
                       f"--lr {a.lr:g} --runs {','.join(a.runs)}",
            "config": config, "steps": self.steps,
            "text": a.text.name if a.text else "King James Bible (Debian: bible-kjv-text)",
            "training_tokens": json.loads((self.work / "train.json").read_text())["tokens"],
            "seconds": {name: seconds for name, (_, seconds) in found.items()},
        }
        passed = learn_report.write(data, {name: lines for name, (lines, _) in found.items()},
                                    a.output)
        if not a.keep:
            shutil.rmtree(self.work)
        return passed


def number(text):
    units = {"k": 10**3, "m": 10**6, "g": 10**9}
    unit = units.get(text[-1:].lower(), 1)
    return int(float(text[:-1] if unit > 1 else text) * unit)


def size(text):
    width, layers = (int(part) for part in text.split("x"))
    if width % HEAD_SIZE or min(width, layers) < 1:
        raise argparse.ArgumentTypeError(f"{text}: the width must be a multiple of {HEAD_SIZE}")
    return width, layers


def main():
    every_run = ["trireme-fp32", "pytorch-fp32", "trireme-bf16", "pytorch-bf16"]
    parser = argparse.ArgumentParser(prog="scripts/compare_learning.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=pathlib.Path, required=True, help="the binary")
    parser.add_argument("--output", type=pathlib.Path, help="default: runs/compare_learning")
    parser.add_argument("--tokens", type=number, default=10_000_000, help="default 10M")
    parser.add_argument("--size", type=size, default=(128, 6), help="WIDTHxLAYERS; default 128x6")
    parser.add_argument("--experts", type=lambda text: tuple(map(int, text.split(","))),
                        help="COUNT,CHOSEN,FFN: Qwen3-MoE in place of Llama, without an auxiliary loss")
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--text", type=pathlib.Path, help="default: what `bible` prints")
    parser.add_argument("--runs", default=",".join(every_run),
                        help="default: " + ",".join(every_run))
    parser.add_argument("--threads", type=int, default=machine.usable_cores(), help="of each run")
    parser.add_argument("--at-once", type=int, default=1, help="runs beside each other; default 1")
    parser.add_argument("--keep", action="store_true", help="keep DIR/work")
    parser.add_argument("--quick", action="store_true", help="64x2, 100,000 tokens")
    arguments = parser.parse_args()
    arguments.runs = arguments.runs.split(",")
    if unknown := set(arguments.runs) - set(every_run):
        parser.error(f"--runs: {', '.join(unknown)} is none of {', '.join(every_run)}")
    if not {"trireme-fp32", "pytorch-fp32"} <= set(arguments.runs):
        parser.error("--runs: trireme-fp32 and pytorch-fp32 are always needed")
    if arguments.quick:
        arguments.size, arguments.sequence, arguments.tokens = (64, 2), 64, 100_000
    if arguments.output is None:
        arguments.output = machine.ROOT / "runs" / "compare_learning"
    arguments.output = arguments.output.resolve()
    try:
        passed = Comparison(arguments).run()
    except RunFailed as failed:
        sys.exit(f"compare_learning: {failed}")
    print((arguments.output / "README.md").read_text())
    print(f"written: {arguments.output}", file=sys.stderr)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
