#!/usr/bin/env python3
"""Predicted seconds of a step beside measured ones, on this machine's CPUs.

  tests/bench/predicted_steps.py --train BUILD/train [--sizes S,M,L] [--ranks 1,2,4] [--rounds 3] [--cpu-time]
                                 [--patience 600] [--output DIR]

For each size and number of ranks `train benchmark --write-cluster` measures the machine with data parallelism alone;
`train plan --cluster` then predicts every layout of as many ranks, and `train benchmark` measures it. A measurement
during which others had more than a tenth of the cores is made again; if that does not end within `--patience` seconds,
the quietest counts, and its row says so. Of a row the median round counts on both sides. Then `train plan --search`
picks a layout of as many ranks, which is measured beside the best of those above, in turns.

With `--cpu-time` one rank of one thread is predicted and measured by the CPU time of its steps, which others hardly
change: that of a longer run less that of a shorter one.

Writes DIR/README.md and data.json. Ranks have one thread each beyond one rank, as `train` gives them.
"""

import argparse
import datetime
import json
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 600
FOREIGN_MAX = 0.1  # of the cores' time

# layers, heads, key/value heads, hidden, ffn, T, global, micro, vocabulary; key heads that a tensor axis of 2 divides
SIZES = {
    "S": (4, 4, 2, 128, 352, 64, 12, 3, 256),
    "M": (6, 6, 2, 384, 1024, 256, 16, 2, 256),
    "L": (12, 12, 6, 768, 2048, 512, 4, 1, 32000),
}
LAYOUTS = {
    1: [{}, {"recompute": "full"}],
    2: [{}, {"zero_stage": 1}, {"zero_stage": 2}, {"zero_stage": 3}, {"tensor": 2}, {"context": 2},
        {"context": 2, "context_method": "ulysses"}, {"pipeline": 2}, {"pipeline": 2, "pipeline_schedule": "zb-h1"}],
    4: [{}, {"zero_stage": 3}, {"tensor": 2}, {"context": 2}, {"pipeline": 2}, {"tensor": 2, "pipeline": 2},
        {"pipeline": 4}],
}
# What a larger model is measured on: a step takes seconds.
STEPS = {"S": (60, 5), "M": (10, 3), "L": (3, 1)}  # timed, and before them
FEWER = {"L": {1: [{}], 2: [{}, {"zero_stage": 3}, {"tensor": 2}, {"pipeline": 2}], 4: [{"pipeline": 2}]}}


def config_of(size):
    layers, heads, kv_heads, hidden, ffn, sequence, batch, micro, vocabulary = SIZES[size]
    return {
        "run": {"directory": "unused", "steps": 100},
        "model": {
            "model_type": "llama", "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "hidden_size": hidden, "intermediate_size": ffn, "vocab_size": vocabulary,
            "max_position_embeddings": sequence, "tie_word_embeddings": False, "bos_token_id": None,
            "eos_token_id": None,
        },
        "data": {"train": "synthetic", "sequence_length": sequence},
        "batch": {"global": batch, "micro": micro},
        "optimizer": {"lr": 1e-4},
    }


def name_of(layout):
    return ", ".join(f"{key} {value}" for key, value in layout.items()) or "data"


def busy_seconds():
    """Of all cores since the start of the machine, those taken by its host among them."""
    fields = [int(each) for each in open("/proc/stat").readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


class Machine:
    def __init__(self, train, patience):
        self.train = str(train)
        self.patience = patience
        self.environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        self.retries = 0

    def once(self, ranks, arguments):
        command = [self.train, *arguments]
        if ranks > 1:
            command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *command]
        busy, begin = busy_seconds(), time.monotonic()
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=TIMEOUT_SECONDS)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        mine = used.ru_utime + used.ru_stime - own.ru_utime - own.ru_stime
        cores = (time.monotonic() - begin) * os.cpu_count()
        return max(0.0, (busy_seconds() - busy - mine) / cores), done.stdout

    def cpu_seconds(self, arguments):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.once(1, arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def wait_for_quiet(self, end):
        """Until the machine has been idle for a second, or the time is over."""
        while time.monotonic() < end:
            busy = busy_seconds()
            time.sleep(1)
            if busy_seconds() - busy <= FOREIGN_MAX * os.cpu_count():
                return

    def quiet(self, ranks, arguments, written=None):
        """(share of the cores that others had, output) of the first quiet run, or of the quietest; of a written file
        its text in place of the output."""
        end, best = time.monotonic() + self.patience, None
        while True:
            self.wait_for_quiet(end)
            if written:
                written.unlink(missing_ok=True)
            foreign, output = self.once(ranks, arguments)
            if best is None or foreign < best[0]:
                best = (foreign, written.read_text() if written else output)
            if foreign <= FOREIGN_MAX or time.monotonic() > end:
                return best
            self.retries += 1


def measure_cpu_time(machine, folder, size, rounds):
    """Rows of one rank and thread. The longer run has `steps[1]` steps behind the shorter one's."""
    config = folder / f"{size}-thread.json"
    config.write_text(json.dumps(config_of(size)))
    cluster = folder / f"{size}-thread-cluster.json"
    thread = ["--set", "run.threads_per_rank=1"]
    shorter, longer = {"S": (2, 22), "M": (1, 4), "L": (1, 2)}[size]
    machine.once(1, ["benchmark", str(config), *thread, "--no-rates", "--steps", str(longer), "--warmup", "1",
                     "--write-cluster", str(cluster)])
    rows = []
    for recompute in ("none", "selective", "full"):
        keys = [*thread, "--set", f"parallel.recompute={recompute}"]
        plan = machine.once(1, ["plan", str(config), "--cluster", str(cluster), "--no-data", "--json", *keys])[1]

        def cpu_seconds(steps):
            arguments = ["benchmark", str(config), *keys, "--no-rates", "--warmup", "1", "--steps", str(steps)]
            return min(machine.cpu_seconds(arguments) for _ in range(rounds))

        row = {"size": size, "ranks": 1, "layout": f"one thread, CPU time, recompute {recompute}", "noise": 0,
               "predicted": [json.loads(plan)["time"]],
               "measured_seconds": (cpu_seconds(longer) - cpu_seconds(shorter)) / (longer - shorter)}
        rows.append(row)
    return [finished(row) for row in rows]


def finished(row):
    row["predicted_seconds"] = statistics.median(each["step_seconds"] for each in row["predicted"])
    row["error"] = row["predicted_seconds"] / row["measured_seconds"] - 1
    print(f"{row['size']} {row['ranks']} {row['layout']:<40} predicted {row['predicted_seconds']:.4f} s, measured "
          f"{row['measured_seconds']:.4f} s: {100 * row['error']:+.1f} % (others {100 * row['noise']:.0f} %)",
          flush=True)
    return row


def measure(machine, folder, size, ranks, rounds):
    config = folder / f"{size}.json"
    config.write_text(json.dumps(config_of(size)))
    layouts = FEWER.get(size, LAYOUTS)[ranks]
    steps = ["--steps", str(STEPS[size][0]), "--warmup", str(STEPS[size][1]), "--no-rates", "--json"]
    rows = [{"size": size, "ranks": ranks, "layout": name_of(each), "keys": each, "predicted": [], "measured": [], "foreign": []}
            for each in layouts]
    for _ in range(rounds):
        cluster = folder / f"{size}-{ranks}.json"
        noise, text = machine.quiet(ranks, ["benchmark", str(config), *steps, "--write-cluster", str(cluster)], cluster)
        cluster.write_text(text)
        for row, layout in zip(rows, layouts):
            keys = [part for key, value in layout.items() for part in ("--set", f"parallel.{key}={value}")]
            plan = machine.once(1, ["plan", str(config), "--world", str(ranks), "--cluster", str(cluster), "--no-data",
                                    "--json", *keys])[1]
            foreign, output = machine.quiet(ranks, ["benchmark", str(config), *steps, *keys])
            result = json.loads(output)
            row["predicted"].append(json.loads(plan)["time"])
            row["measured"].append({"step_seconds": result["step_seconds"], "time": result["time"]})
            row["foreign"].append(max(foreign, noise))
    for row in rows:
        row["measured_seconds"] = statistics.median(each["step_seconds"]["median"] for each in row["measured"])
        row["noise"] = statistics.median(row["foreign"])
    return [finished(row) for row in rows], picked(machine, cluster, config, steps, rows)


def picked(machine, cluster, config, steps, rows):
    """What search picks beside the best of the rows: the median ratio of measurements in turns."""
    ranks, best = rows[0]["ranks"], min(rows, key=lambda row: row["measured_seconds"])
    written = config.with_name(f"{config.stem}-{ranks}-picked.json")
    written.unlink(missing_ok=True)
    found = json.loads(machine.once(1, ["plan", str(config), "--world", str(ranks), "--cluster", str(cluster), "--search",
                                        "--write", str(written), "--no-data", "--json"])[1])
    keys = [part for key, value in best["keys"].items() for part in ("--set", f"parallel.{key}={value}")]

    def seconds(*arguments):
        return json.loads(machine.quiet(ranks, ["benchmark", *arguments, *steps])[1])["step_seconds"]["median"]

    ratios = [seconds(str(written)) / seconds(str(config), *keys) for _ in range(3)]
    row = {"size": best["size"], "ranks": ranks, "best": best["layout"], "ratio": statistics.median(ratios),
           "picked": json.loads(written.read_text()), "layouts": found["layouts"][:3]}
    print(f"{row['size']} {ranks}: picked takes {row['ratio']:.3f} of the best ({row['best']})", flush=True)
    return row


def cpu_name():
    lines = open("/proc/cpuinfo").read().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def page(data):
    rows = data["rows"]
    errors = [abs(row["error"]) for row in rows]
    quiet = [abs(row["error"]) for row in rows if row["noise"] <= FOREIGN_MAX]
    text = [
        "# Predicted steps beside measured ones, on a CPU", "",
        "`train plan --cluster` with what `train benchmark --write-cluster` measured on as many ranks of this machine,",
        "data-parallel, beside `train benchmark` of each layout. By `tests/bench/predicted_steps.py`.", "",
        f"{data['date']}, commit {data['commit']}, {data['cpu']}, {data['cores']} cores; {data['rounds']} rounds, "
        f"{data['retries']} measurements", "made again because others had more than a tenth of the cores.", "",
        f"{len(rows)} rows: median error {100 * statistics.median(errors):.1f} %, largest {100 * max(errors):.1f} %, "
        f"within 15 %: {sum(error <= 0.15 for error in errors)}.",
    ]
    if quiet and len(quiet) < len(rows):
        text.append(f"Of the {len(quiet)} rows measured in quiet: median {100 * statistics.median(quiet):.1f} %, "
                    f"largest {100 * max(quiet):.1f} %.")
    text += ["", "| size | ranks | layout | predicted s | measured s | error | others had |",
             "|---|---|---|---|---|---|---|"]
    for row in rows:
        text.append(f"| {row['size']} | {row['ranks']} | {row['layout']} | {row['predicted_seconds']:.4f} | "
                    f"{row['measured_seconds']:.4f} | {100 * row['error']:+.1f} % | {100 * row['noise']:.0f} % |")
    if data["picked"]:
        text += ["", "What `plan --search` picks, in turns with the best of those above:", "",
                 "| size | ranks | best of those | picked takes | picked |", "|---|---|---|---|---|"]
        for row in data["picked"]:
            keys = {**row["picked"].get("parallel", {}), "micro": row["picked"]["batch"].get("micro")}
            text.append(f"| {row['size']} | {row['ranks']} | {row['best']} | {row['ratio']:.3f} | {name_of(keys)} |")
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=pathlib.Path, required=True)
    parser.add_argument("--sizes", default="S,M,L")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--patience", type=float, default=600)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "runs" / "predicted_steps")
    options = parser.parse_args()
    machine = Machine(options.train.resolve(), options.patience)
    rows, choices = [], []
    with tempfile.TemporaryDirectory() as folder:
        for size in options.sizes.split(","):
            if options.cpu_time:
                rows += measure_cpu_time(machine, pathlib.Path(folder), size, options.rounds)
                continue
            for ranks in options.ranks.split(","):
                measured, choice = measure(machine, pathlib.Path(folder), size, int(ranks), options.rounds)
                rows += measured
                choices.append(choice)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    data = {"date": datetime.date.today().isoformat(), "commit": commit.stdout.strip(), "cpu": cpu_name(),
            "cores": os.cpu_count(), "rounds": options.rounds, "retries": machine.retries, "rows": rows, "picked": choices}
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "data.json").write_text(json.dumps(data, indent=1) + "\n")
    (options.output / "README.md").write_text(page(data))
    print(page(data))


if __name__ == "__main__":
    main()
