"""Trains the same Llama by `train` and by PyTorch in turns, and compares speed and memory.

Started by scripts/bench_pytorch.sh, whose header says what is measured.
"""

import argparse
import json
import math
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time

import bench_report
import machine

HERE = pathlib.Path(__file__).resolve().parent
TIMEOUT_SECONDS = 3600

# layers, heads, key/value heads, hidden, ffn, T, micro, vocabulary
SIZES = {
    "S": (4, 4, 2, 128, 352, 64, 12, 256),
    "M": (6, 6, 3, 384, 1024, 256, 16, 256),
    "L": (12, 12, 6, 768, 2048, 512, 4, 50257),
}
# Where memory matters, the same updates with less of it: both sides also train a batch one sequence
# at a time, adding up gradients over as many passes, and our ranks share the optimizer's state.
SHORT_OF_MEMORY = {"L"}


class MeasurementFailed(Exception):
    pass


def config_of(size):
    layers, heads, kv_heads, hidden, ffn, sequence, micro, vocabulary = SIZES[size]
    return {
        "model": {
            "model_type": "llama", "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "hidden_size": hidden, "intermediate_size": ffn,
            "vocab_size": vocabulary, "max_position_embeddings": sequence,
            "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None,
        },
        "data": {"train": "synthetic", "sequence_length": sequence},
        "batch": {"global": micro},
        "optimizer": {"lr": 1e-4},
    }


def flops_per_token(model, sequence):
    """`train benchmark`'s count: 6 per weight that multiplies, and causal attention once."""
    hidden, head_dim = model["hidden_size"], model["hidden_size"] // model["num_attention_heads"]
    kv = model["num_key_value_heads"] * head_dim
    block = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * model["intermediate_size"]
    weights = model["num_hidden_layers"] * block + hidden * model["vocab_size"]
    return 6 * weights + 6 * model["num_hidden_layers"] * hidden * sequence


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def descendants(pid):
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        for task in pathlib.Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                children = [int(child) for child in task.read_text().split()]
            except OSError:
                continue
            found += children
            waiting += children
    return found


def high_water(pid, program):
    """Peak resident bytes of a process, if it is the program; 0 once it is gone."""
    try:
        if pathlib.Path(os.readlink(f"/proc/{pid}/exe")) != program:
            return 0
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def run_ours(command, environment, program):
    """Runs the command; returns what it printed, and the peak of each rank as seen from outside."""
    process = subprocess.Popen(command, env=environment, cwd=machine.ROOT, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    peaks, done = {}, threading.Event()

    def watch():
        while not done.wait(0.2):
            for pid in [process.pid, *descendants(process.pid)]:
                bytes_now = high_water(pid, program)
                if bytes_now:
                    peaks[pid] = max(bytes_now, peaks.get(pid, 0))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as late:
        process.terminate()
        raise MeasurementFailed(f"{command[0]}: took over {TIMEOUT_SECONDS} s") from late
    finally:
        done.set()
        watcher.join()
    if process.returncode != 0:
        raise MeasurementFailed(f"exit {process.returncode}: {errors.strip()[-600:]}")
    return output, list(peaks.values())


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.scratch = arguments.output / "scratch"
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()
        # A copy, so that a build in the meantime cannot change what is measured.
        self.train = pathlib.Path(shutil.copy2(arguments.train, self.scratch / "train"))
        self.threads = arguments.threads
        self.steps = {}

    def command(self):
        a = self.arguments
        return (f"scripts/bench_pytorch.sh --sizes {','.join(a.sizes)} "
                f"--dtypes {','.join(a.dtypes)} --rounds {a.rounds} --seconds {a.seconds:g} "
                f"--threads {a.threads}")

    def write(self, name, value):
        path = self.scratch / name
        path.write_text(json.dumps(value, indent=1))
        return path

    def ranks_of(self, size):
        """As many ranks as there are threads, or as the batch can be cut into."""
        return math.gcd(self.threads, SIZES[size][6])

    def pytorch(self, mode, spec, threads, ranks=1):
        path = self.write("specification.json", spec)
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads), PYTHONDONTWRITEBYTECODE="1",
                           TORCHINDUCTOR_CACHE_DIR=str(self.scratch / "inductor"),
                           HF_HUB_OFFLINE="1", MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(free_port()), WORLD_SIZE=str(ranks))
        command = [sys.executable, str(HERE / "bench_worker.py"), mode, str(path)]
        processes = [subprocess.Popen(command, env=dict(environment, RANK=str(rank)), text=True,
                                      stdout=subprocess.PIPE,
                                      stderr=(self.scratch / f"stderr-{rank}").open("w"))
                     for rank in range(ranks)]
        try:
            outputs = [process.communicate(timeout=TIMEOUT_SECONDS)[0] for process in processes]
        except subprocess.TimeoutExpired as late:
            raise MeasurementFailed(f"took over {TIMEOUT_SECONDS} s") from late
        finally:
            for process in processes:
                process.kill()
                process.wait()
        # Rank 0 has everybody's figures once it ends well; how the others end adds nothing.
        if processes[0].returncode != 0:
            said = [(self.scratch / f"stderr-{rank}").read_text().strip()[-600:]
                    for rank in range(ranks)]
            raise MeasurementFailed("\n".join(
                f"rank {rank}: exit {process.returncode} {text}"
                for rank, (process, text) in enumerate(zip(processes, said))))
        return json.loads(outputs[0].strip().splitlines()[-1])

    def measure_pytorch(self, size, dtype, row, steps):
        ranks = self.ranks_of(size) if row.startswith("ddp") else 1
        config = config_of(size)
        batch = config["batch"]["global"]
        result = self.pytorch("step", {
            "model": config["model"], "sequence": config["data"]["sequence_length"],
            "batch": batch, "micro": 1 if row == "by sequence" else batch // ranks,
            "ranks": ranks, "dtype": dtype, "compile": not row.endswith("eager"), **steps},
            self.threads // ranks, ranks)
        return {"step_seconds": statistics.median(result["step_seconds"]),
                "step_seconds_minimum": min(result["step_seconds"]), "ranks": ranks,
                "threads_per_rank": self.threads // ranks,
                "memory_bytes": result["memory_bytes"],
                "memory_before_model_bytes": result["memory_before_model_bytes"],
                "parameters": result["parameters"]}

    def benchmark(self, size, dtype, row, steps, *options):
        """`train benchmark`: the object that it prints, and the peak memory of each rank."""
        ranks = self.ranks_of(size) if row.startswith("ranks") else 1
        config = config_of(size)
        config["run"] = {"directory": str(self.scratch / "unused"), "steps": 1,
                         "threads_per_rank": self.threads // ranks}
        config["batch"]["micro"] = config["batch"]["global"] // ranks
        config["precision"] = {"compute": dtype}
        if row == "ranks ZeRO 1":
            config["parallel"] = {"zero_stage": 1}
        path = self.write("config.json", config)
        command = ["benchmark", str(path), "--json", "--steps", str(steps["steps"]),
                   "--warmup", str(steps["warmup"]), *options]
        if ranks == 1:
            command = [str(self.train)] + command
        else:
            command = [str(machine.ROOT / "scripts" / "run.sh"), "-n", str(ranks)] + command
        output, peaks = run_ours(command, dict(os.environ, TRIREME_TRAIN=str(self.train)),
                                 self.train)
        return json.loads(output), peaks

    def measure_ours(self, size, dtype, row, steps):
        # What the machine can do is measured apart: it takes memory, and would count as ours.
        result, peaks = self.benchmark(size, dtype, row, steps, "--no-rates")
        # The program's own figure is the last; what is seen from outside may miss the last moment.
        largest = max([result["memory_bytes"], *peaks])
        missed = largest - max(peaks, default=0)
        memory = sorted((peak + missed for peak in peaks), reverse=True) or [largest]
        return {"step_seconds": result["step_seconds"]["median"],
                "step_seconds_minimum": result["step_seconds"]["minimum"],
                "ranks": result["world"], "threads_per_rank": result["threads_per_rank"],
                "memory_bytes": memory, "time": result["time"],
                "flops_per_token": result["tflops_per_second"] * 1e12
                / result["tokens_per_second"]}

    def rates(self):
        """Of both sides: large matrix products, and a copy."""
        bf16 = "bf16" in self.arguments.dtypes  # bf16's run measures both
        result, _ = self.benchmark("S", "bf16" if bf16 else "fp32", "threads",
                                   {"steps": 1, "warmup": 1})
        return {"train": {key: result["machine"][key] for key in
                          ("sgemm_gflops", "bf16_gflops", "copy_gb_per_second")},
                "pytorch": self.pytorch("machine", {"bf16": bf16}, self.threads)}

    def profile(self, size):
        """Where the time of our step goes, by op, and what bounds it."""
        steps = self.steps[size]
        fewer = {"steps": max(steps["steps"] // 2, 3), "warmup": steps["warmup"]}
        return [{"dtype": dtype, "row": row, **self.benchmark(size, dtype, row, fewer)[0]}
                for dtype in self.arguments.dtypes
                for side, row in self.rows(size)
                if side == "trireme" and row in ("threads", "ranks")]

    def check_same_step(self, size):
        """Two updates from the same weights on the same samples: losses and norms must agree."""
        config = config_of(size)
        batch, directory = config["batch"]["global"], self.scratch / f"check-{size}"
        shutil.rmtree(directory, ignore_errors=True)
        model = config.pop("model")
        config["init"] = {"weights": str(directory / "model")}
        config["run"] = {"directory": str(directory / "run"), "steps": 2,
                         "threads_per_rank": self.threads}
        config["lr_schedule"] = {"kind": "constant"}
        path = self.write("check.json", config)
        samples = self.write("samples.json", [])
        spec = {"model": model, "directory": str(directory / "model"), "samples": str(samples),
                "lr": config["optimizer"]["lr"], "batch": batch}
        # The samples are wanted before the worker writes the model: named by its keys here.
        listing, _ = run_ours([str(self.train), "data", str(self.write("data.json", {
            **config, "init": None, "model": model})), "--json", "--count", str(2 * batch)],
            dict(os.environ), self.train)
        samples.write_text(json.dumps([json.loads(line)["tokens"]
                                       for line in listing.splitlines()]))
        theirs = self.pytorch("check", spec, self.threads)
        run_ours([str(self.train), str(path)], dict(os.environ), self.train)
        lines = [json.loads(line) for line in
                 (directory / "run" / "metrics.jsonl").read_text().splitlines()]
        ours = {"parameters": next(line["parameters"] for line in lines
                                   if line["kind"] == "start"),
                "loss": [line["loss"] for line in lines if line["kind"] == "step"],
                "grad_norm": [line["grad_norm"] for line in lines if line["kind"] == "step"]}
        shutil.rmtree(directory)
        off = max(abs(a - b) / b for key in ("loss", "grad_norm")
                  for a, b in zip(ours[key], theirs[key], strict=True))
        same = ours["parameters"] == theirs["parameters"] and off < 1e-4
        print(f"{size}: two updates from the same weights: {ours['parameters']:,} parameters, "
              f"losses and norms within {off:.1e}", file=sys.stderr)
        if not same:
            sys.exit(f"{size}: not the same computation: train {ours}, PyTorch {theirs}")
        return {"parameters": ours["parameters"], "largest_relative_difference": off,
                "train": ours, "pytorch": theirs}

    def steps_for(self, size):
        """The same number of steps for every row, so that our fastest takes about --seconds."""
        probe = self.measure_ours(size, "fp32", "threads", {"steps": 3, "warmup": 2})
        steps = round(self.arguments.seconds / probe["step_seconds"])
        return {"steps": min(max(steps, 3), 500), "warmup": min(max(steps // 5, 2), 20)}

    def rows(self, size):
        rows = [("trireme", "threads"), ("pytorch", "eager"), ("pytorch", "compiled")]
        if self.ranks_of(size) > 1:
            rows.insert(1, ("trireme", "ranks"))
            rows += [("pytorch", "ddp eager"), ("pytorch", "ddp compiled")]
        if size in SHORT_OF_MEMORY:
            rows += [("pytorch", "by sequence")]
            if self.ranks_of(size) > 1:
                rows.insert(-1, ("trireme", "ranks ZeRO 1"))
        return [row for row in rows if row[0] == "trireme" or row[1] in self.arguments.pytorch]

    def measure(self, size, dtype, side, row, steps):
        measure_side = self.measure_ours if side == "trireme" else self.measure_pytorch
        begin = time.monotonic()
        try:
            found = measure_side(size, dtype, row, steps)
        except MeasurementFailed as failed:
            print(f"  FAILED {side} {row}: {failed}", file=sys.stderr)
            return {"error": str(failed)}
        config = config_of(size)
        tokens = config["batch"]["global"] * config["data"]["sequence_length"]
        found["tokens_per_second"] = tokens / found["step_seconds"]
        expected = flops_per_token(config["model"], config["data"]["sequence_length"])
        if abs(found.get("flops_per_token", expected) / expected - 1) > 1e-6:
            sys.exit(f"{size}: flops per token: {found['flops_per_token']}, not {expected}")
        print(f"  {side:8} {row:13} {found['tokens_per_second']:10,.0f} tokens/s  "
              f"{sum(found['memory_bytes']) / 2**20:7,.0f} MiB  "
              f"({time.monotonic() - begin:.0f} s)", file=sys.stderr)
        return found

    def run(self):
        data = {"machine": machine.describe(str(self.train), self.threads),
                "options": {"rounds": self.arguments.rounds, "seconds": self.arguments.seconds,
                            "command": self.command()},
                "sizes": {}, "rates": [], "measurements": []}
        for size in self.arguments.sizes:
            config = config_of(size)
            data["sizes"][size] = {
                "model": config["model"], "sequence": config["data"]["sequence_length"],
                "batch": config["batch"]["global"],
                "flops_per_token": flops_per_token(config["model"],
                                                   config["data"]["sequence_length"]),
                "check": self.check_same_step(size)}
            data["sizes"][size]["steps"] = self.steps[size] = self.steps_for(size)
        # All rows of a size in turns: whatever disturbs the machine for a while hits all of them.
        for size in self.arguments.sizes:
            for number in range(1, self.arguments.rounds + 1):
                print(f"{size}, round {number} of {self.arguments.rounds}", file=sys.stderr)
                data["rates"].append({"size": size, "round": number, **self.rates()})
                for dtype in self.arguments.dtypes:
                    print(f" {dtype}", file=sys.stderr)
                    for side, row in self.rows(size):
                        found = self.measure(size, dtype, side, row, self.steps[size])
                        data["measurements"].append({"size": size, "dtype": dtype, "side": side,
                                                     "row": row, "round": number, **found})
                bench_report.write(data, self.arguments.output)
            data["sizes"][size]["profile"] = self.profile(size)
            bench_report.write(data, self.arguments.output)
        shutil.rmtree(self.scratch)
        return data


def choice(legal):
    def parse(text):
        items = [item.strip() for item in text.split(",")]
        for item in items:
            if item not in legal:
                raise argparse.ArgumentTypeError(f"{item}: not one of {', '.join(legal)}")
        return items

    return parse


def main():
    every_row = ["eager", "compiled", "ddp eager", "ddp compiled", "by sequence"]
    parser = argparse.ArgumentParser(prog="scripts/bench_pytorch.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=pathlib.Path, required=True, help="the binary")
    parser.add_argument("--output", type=pathlib.Path, help="default: runs/bench_pytorch")
    parser.add_argument("--sizes", type=choice(SIZES), default=list(SIZES), help="S,M,L")
    parser.add_argument("--dtypes", type=choice(["fp32", "bf16"]),
                        help="fp32,bf16; default: bf16 where the CPU has instructions for it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0,
                        help="about how long each measurement of ours takes; default 10")
    parser.add_argument("--threads", type=int, default=machine.usable_cores(),
                        help="default: the usable cores")
    parser.add_argument("--pytorch", type=choice(every_row), default=every_row,
                        help="rows of the PyTorch side; default: " + ",".join(every_row))
    parser.add_argument("--quick", action="store_true",
                        help="S in fp32, one short round: tries the script, measures nothing")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sizes, arguments.dtypes, arguments.rounds = ["S"], ["fp32"], 1
        arguments.seconds, arguments.pytorch = 0.2, ["eager"]
    if arguments.dtypes is None:
        arguments.dtypes = ["fp32", "bf16"] if machine.has_bf16() else ["fp32"]
    if arguments.output is None:
        arguments.output = machine.ROOT / "runs" / "bench_pytorch"
    arguments.output = arguments.output.resolve()
    arguments.output.mkdir(parents=True, exist_ok=True)
    try:
        data = Bench(arguments).run()
    except MeasurementFailed as failed:
        sys.exit(f"bench_pytorch: {failed}")
    print((arguments.output / "README.md").read_text())
    print(f"written: {arguments.output}", file=sys.stderr)
    if any("error" in measurement for measurement in data["measurements"]):
        sys.exit("some measurements failed; see above")


if __name__ == "__main__":
    main()
