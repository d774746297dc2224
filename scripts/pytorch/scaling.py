"""One and two ranks of one thread, by `train` and by PyTorch in turns.

Started by scripts/bench_scaling.sh, whose header says what is measured.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys

import bench
import machine

RANKS = 2
TWO_KEY_HEADS = {"model.num_key_value_heads": 2}
# Name, side, ranks, settings of ours (or the row of bench.py for PyTorch).
ROWS = [
    ("one rank", "train", 1, {}),
    ("PyTorch, one process, eager", "pytorch", 1, "eager"),
    ("data 2", "train", 2, {"parallel.data": 2}),
    ("DDP over gloo, eager", "pytorch", 2, "ddp eager"),
    ("data 2, zero 1", "train", 2, {"parallel.data": 2, "parallel.zero_stage": 1}),
    ("data 2, zero 3", "train", 2, {"parallel.data": 2, "parallel.zero_stage": 3}),
    ("DDP over gloo, compiled", "pytorch", 2, "ddp compiled"),
    ("context 2, ring", "train", 2, {"parallel.context": 2}),
    ("pipeline 2, zb-h1, 8 micro-batches", "train", 2,
     {"parallel.pipeline": 2, "parallel.pipeline_schedule": "zb-h1", "batch.micro": 2}),
    ("one rank, 2 key heads", "train", 1, TWO_KEY_HEADS),
    ("tensor 2, 2 key heads", "train", 2, {"parallel.tensor": 2, **TWO_KEY_HEADS}),
    ("context 2, ulysses, 2 key heads", "train", 2,
     {"parallel.context": 2, "parallel.context_method": "ulysses", **TWO_KEY_HEADS}),
]
# What is compared with what; the goal where there is one.
COMPARED = [
    ("data 2", "DDP over gloo, eager", 1.1), ("data 2", "DDP over gloo, compiled", 1.1),
    ("data 2", "one rank", None), ("data 2, zero 1", "one rank", None), ("data 2, zero 3", "one rank", None),
    ("context 2, ring", "one rank", None), ("pipeline 2, zb-h1, 8 micro-batches", "one rank", None),
    ("tensor 2, 2 key heads", "one rank, 2 key heads", None),
    ("context 2, ulysses, 2 key heads", "one rank, 2 key heads", None),
    ("DDP over gloo, eager", "PyTorch, one process, eager", None),
]


class Scaling(bench.Bench):
    def ours(self, ranks, settings, steps):
        """The median step of `ranks` ranks of one thread."""
        config = bench.config_of(self.arguments.size)
        data = settings.get("parallel.data", 1)
        config["run"] = {"directory": str(self.scratch / "unused"), "steps": 1, "threads_per_rank": 1}
        config["batch"]["micro"] = config["batch"]["global"] // data
        config["precision"] = {"compute": "fp32"}
        command = ["benchmark", str(self.write("config.json", config)), "--json", "--no-rates",
                   "--steps", str(steps["steps"]), "--warmup", str(steps["warmup"])]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        program = [str(self.train)] if ranks == 1 else [
            str(machine.ROOT / "scripts" / "run.sh"), "-n", str(ranks)]
        output, _ = bench.run_ours(program + command, dict(os.environ, TRIREME_TRAIN=str(self.train)), self.train)
        return json.loads(output)["step_seconds"]["median"]

    def theirs(self, ranks, row, steps):
        config = bench.config_of(self.arguments.size)
        result = self.pytorch("step", {
            "model": config["model"], "sequence": config["data"]["sequence_length"],
            "batch": config["batch"]["global"], "ranks": ranks, "dtype": "fp32",
            "compile": row.endswith("compiled"), **steps}, 1, ranks)
        return statistics.median(result["step_seconds"])

    def measure_row(self, row, steps):
        name, side, ranks, what = row
        config = bench.config_of(self.arguments.size)
        tokens = config["batch"]["global"] * config["data"]["sequence_length"]
        try:
            rate = tokens / (self.ours if side == "train" else self.theirs)(ranks, what, steps)
        except bench.MeasurementFailed as failed:
            print(f"  FAILED {name}: {failed}", file=sys.stderr)
            return None
        print(f"  {name:36} {rate:10,.0f} tokens/s", file=sys.stderr)
        return rate

    def run(self):
        check = self.check_same_step(self.arguments.size)
        seconds = self.ours(1, {}, {"steps": 2, "warmup": 1})
        count = min(max(round(self.arguments.seconds / seconds), 3), 200)
        steps = {"steps": count, "warmup": 1}
        rounds = []
        for number in range(1, self.arguments.rounds + 1):
            load = os.getloadavg()[0]
            print(f"round {number} of {self.arguments.rounds}, load {load:.1f}", file=sys.stderr)
            rounds.append({"load": load, "rates": {row[0]: self.measure_row(row, steps) for row in ROWS}})
            data = {"machine": machine.describe(str(self.train), 1), "size": self.arguments.size, "steps": steps,
                    "check": check, "rounds": rounds}
            (self.arguments.output / "data.json").write_text(json.dumps(data, indent=1) + "\n")
            (self.arguments.output / "README.md").write_text(report(data, self.arguments))


def median_of(rounds, name):
    rates = [each["rates"][name] for each in rounds if each["rates"][name]]
    return statistics.median(rates) if rates else None


def quotients(rounds, name, of):
    return sorted(each["rates"][name] / each["rates"][of] for each in rounds
                  if each["rates"][name] and each["rates"][of])


def report(data, arguments):
    about, rounds = data["machine"], data["rounds"]
    layers, heads, kv, hidden, ffn, tokens, micro, vocabulary = bench.SIZES[data["size"]]
    lines = [
        f"# One and two ranks of one thread beside PyTorch, size {data['size']}, fp32", "",
        f"{about['date']}, {about['cpu']['model']}, commit {about['commit']}; "
        f"`scripts/bench_scaling.sh --rounds {len(rounds)} --seconds {arguments.seconds:g}`. A llama of {layers} "
        f"layers, {heads} heads ({kv} for keys), hidden {hidden}, MLP {ffn}, T {tokens}, a global batch of {micro}, "
        f"vocabulary {vocabulary}. Of each round the median of {data['steps']['steps']} steps; rows in turns. Load of "
        f"the machine before the rounds: " + ", ".join(f"{each['load']:.1f}" for each in rounds) + ".", "",
        f"Two updates from the same weights agree with PyTorch's within "
        f"{data['check']['largest_relative_difference']:.1e}.", "",
        "| row | ranks | tokens/s, median of rounds |", "|---|---|---|"]
    for name, _, ranks, _ in ROWS:
        rate = median_of(rounds, name)
        lines.append(f"| {name} | {ranks} | {'failed' if rate is None else f'{rate:,.0f}'} |")
    lines += ["", "| tokens/s of | over those of | median of rounds | least | most | goal |", "|---|---|---|---|---|---|"]
    for name, of, goal in COMPARED:
        found = quotients(rounds, name, of)
        if not found:
            continue
        middle = statistics.median(found)
        wanted = "" if goal is None else f"{goal:g}, {'met' if middle >= goal else 'MISSED'}"
        lines.append(f"| {name} | {of} | {middle:.2f} | {found[0]:.2f} | {found[-1]:.2f} | {wanted} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench_scaling.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=pathlib.Path, required=True, help="the binary")
    parser.add_argument("--output", type=pathlib.Path, default=machine.ROOT / "runs" / "bench_scaling")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of one rank of ours, a row; default 10")
    parser.add_argument("--quick", action="store_true", help="one short round of S: tries the script")
    arguments = parser.parse_args()
    arguments.size, arguments.threads = "M", RANKS
    if arguments.quick:
        arguments.size, arguments.rounds, arguments.seconds = "S", 1, 0.2
    arguments.output = arguments.output.resolve()
    arguments.output.mkdir(parents=True, exist_ok=True)
    try:
        Scaling(arguments).run()
    except bench.MeasurementFailed as failed:
        sys.exit(f"bench_scaling: {failed}")
    print((arguments.output / "README.md").read_text())
    print(f"written: {arguments.output}", file=sys.stderr)


if __name__ == "__main__":
    main()
