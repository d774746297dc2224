#!/usr/bin/env python3
"""Fine-tuning on conversations: this program's and trl's (over peft), on the same cores, in fp32.

  tests/bench/fine_tuning_beside_trl.py --train BUILD/train [--parts losses,plan,memory,speed] [--threads 2]
                                        [--rounds 3] [--patience 120] [--output DIR] [--python PYTHON]

losses  a Qwen3 and a Llama of random weights, in full, by LoRA, rank-stabilised, DoRA and beside NF4: what both sides
        packed, token for token; 20 steps of AdamW; the adapters in peft (scripts/check_adapter.py), peft's here,
        merged exports.
plan    bytes of a parameter and FLOPs of a step by `train plan`, on one rank and with ZeRO 3 on 4, beside processes.
memory  peak resident bytes of whole processes, theirs and ours.
speed   tokens a second in turns. A measurement during which others had more than a tenth of the cores is made again
        for up to `--patience` seconds; the quietest counts.

PYTHON has torch, transformers, datasets, peft, trl and bitsandbytes, all in its own environment (datasets pickles
modules that lie elsewhere); trl_worker.py is their side. Writes DIR/data.json and README.md; parts that were not asked
for stay as DIR/data.json has them. Ends with 1 where a check failed.
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from predicted_steps import FOREIGN_MAX, ROOT, busy_seconds, cpu_name

GOLDEN = ROOT / "tests" / "golden"
TOLERANCE = 1e-4  # of a loss
SAMPLE_SECONDS = 0.02
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FAMILIES = {
    "qwen3": {"model": {"model_type": "qwen3", "head_dim": 64}, "tokenizer": "tokenizer/qwen", "template": "qwen3",
              "tokens": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}},
    "llama": {"model": {"model_type": "llama"}, "tokenizer": "chat/llama3", "template": "llama3",
              "tokens": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>",
                         "pad_token": "<|end_of_text|>"}},
}
KINDS = {"full": None, "lora": {}, "rslora": {"rslora": True}, "dora": {"dora": True}, "qlora": {"base": "nf4"}}
NAMES = {"full": "in full", "lora": "LoRA", "rslora": "rank-stabilised", "dora": "DoRA", "qlora": "QLoRA"}
# layers, hidden, ffn, heads, key/value heads, vocabulary, T, micro, accumulation, steps, conversations
SIZES = {"losses": (3, 128, 384, 4, 2, 544, 256, 2, 2, 20, 280),
         "speed": (8, 512, 1408, 8, 4, 8192, 512, 2, 1, 8, 130),
         "memory": (8, 1024, 2816, 16, 8, 8192, 256, 1, 1, 2, 60)}
RECIPE = {"betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0, "warmup": 4}
RATES = {"full": 1e-3}  # of the others:
RATE = 4e-3
WORDS = ("stroke oar bank hull crew dawn salt tide keel mast rope sail storm harbour rower bench drum helm wind wave "
         "über naïve 海 船 three 42 rows slowly before the a of and pulls, turns; why? how! because").split()


def sentence(dice, words):
    return " ".join(dice.choice(WORDS) for _ in range(words))


def conversation(dice, thoughts):
    messages = []
    if dice.random() < 0.3:
        messages.append({"role": "system", "content": sentence(dice, dice.randint(2, 6))})
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        messages.append({"role": "user", "content": sentence(dice, dice.randint(2, 8))})
        answer = sentence(dice, int(dice.paretovariate(1.3) * 3) % 60 + 1)
        if thoughts and dice.random() < 0.3:
            answer = f"<think>\n{sentence(dice, 5)}\n</think>\n\n{answer}"
        messages.append({"role": "assistant", "content": answer})
    return {"messages": messages}


def anonymous_bytes(process):
    """Resident bytes that are no pages of files; 0 where the process has ended."""
    try:
        lines = open(f"/proc/{process}/status").read().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def ended(process):
    """(exit code, peak bytes in all and sampled without pages of files) of a child, when it has ended."""
    most = 0
    while True:
        most = max(most, anonymous_bytes(process))
        found, status, usage = os.wait4(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), {"peak": usage.ru_maxrss * 1024, "anonymous": most}
        time.sleep(SAMPLE_SECONDS)


class Bench:
    def __init__(self, options, scratch):
        self.options, self.scratch = options, scratch
        self.environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads), OMPI_ALLOW_RUN_AS_ROOT="1",
                                OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", TOKENIZERS_PARALLELISM="false")
        self.versions, self.failures = {}, 0

    def run(self, command, text=None, may_fail=False):
        """(exit code, standard output, memory) of a process."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = subprocess.Popen([str(each) for each in command], env=self.environment, stdout=out, stderr=err,
                                     stdin=subprocess.PIPE, text=True)
            child.stdin.write(text or "")
            child.stdin.close()
            child.returncode, memory = ended(child.pid)
            out.seek(0)
            err.seek(0)
            if child.returncode and not may_fail:
                raise SystemExit(f"{' '.join(map(str, command))}: exit {child.returncode}\n{err.read()[-3000:]}")
            return child.returncode, out.read(), memory

    def theirs(self, requests):
        """Answers of one process of trl_worker.py."""
        answers = self.scratch / "answers.json"
        text = json.dumps({"threads": self.options.threads, "answers": answers, "requests": requests}, default=str)
        memory = self.run([self.options.python, ROOT / "tests" / "bench" / "trl_worker.py"], text)[2]
        found = json.loads(answers.read_text())
        self.versions = found["versions"]
        return found["answers"], memory

    def train(self, *arguments):
        return self.run([self.options.train, *arguments])

    def ranks(self, count, *arguments):
        if count == 1:
            return self.train(*arguments)
        return self.run(["mpirun", "--oversubscribe", "--bind-to", "none", "-n", count, self.options.train, *arguments])

    def quiet(self, measure):
        """(share of the cores that others had, value) of the first quiet measurement, or of the quietest."""
        end, best = time.monotonic() + self.options.patience, None
        while True:
            busy, begin, own = busy_seconds(), time.monotonic(), os.times()
            value = measure()
            now = os.times()
            mine = sum(now[:4]) - sum(own[:4])
            cores = (time.monotonic() - begin) * os.cpu_count()
            foreign = max(0.0, (busy_seconds() - busy - mine) / cores)
            if best is None or foreign < best[0]:
                best = (foreign, value)
            if foreign <= FOREIGN_MAX or time.monotonic() > end:
                return best

    def check(self, passed, text):
        self.failures += not passed
        print(f"{'ok    ' if passed else 'FAILED'} {text}", flush=True)
        return passed


class Case:
    """A model of a family and size, with its conversations, on both sides."""

    def __init__(self, bench, size, family):
        self.bench, self.family, self.size = bench, family, size
        self.folder = bench.scratch / f"{size}_{family}"
        (self.layers, self.hidden, self.ffn, self.heads, self.kv_heads, self.vocabulary, self.sequence, self.micro,
         self.accumulation, self.steps, self.conversations) = SIZES[size]
        self.rank, self.alpha = 8, 16
        self.talks = self.folder / "talks.jsonl"
        self.base = self.folder / "model"

    def model(self):
        return {**FAMILIES[self.family]["model"], "num_hidden_layers": self.layers, "hidden_size": self.hidden,
                "intermediate_size": self.ffn, "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads, "vocab_size": self.vocabulary, "max_position_embeddings": 1024,
                "tie_word_embeddings": self.family == "qwen3"}

    def make(self):
        self.folder.mkdir()
        dice = random.Random(f"{self.size} {self.family}")
        talks = [conversation(dice, self.family == "qwen3") for _ in range(self.conversations)]
        self.talks.write_text("".join(json.dumps(talk, ensure_ascii=False) + "\n" for talk in talks))
        family = FAMILIES[self.family]
        self.bench.theirs([{
            "action": "make", "folder": self.folder, "seed": 7, "model": self.model(), "tokens": family["tokens"],
            "tokenizer": GOLDEN / f"{family['tokenizer']}.tokenizer.json", "template": family["template"],
            "starts": [kind for kind in KINDS if kind != "full"], "quantized": self.size == "losses",
            "rank": self.rank, "alpha": self.alpha, "targets": TARGETS}])
        self.bench.train("tokenize", "--tokenizer", self.base, "--messages", "messages", "--pack", self.sequence,
                         "--output", self.folder / "packed", self.talks)

    def rate(self, kind):
        return RATES.get(kind, RATE)

    def config(self, kind, run):
        config = {
            "run": {"directory": str(run), "steps": self.steps, "device": "cpu",
                    "threads_per_rank": self.bench.options.threads},
            "init": {"weights": str(self.base)}, "tokenizer": str(self.base / "tokenizer.json"),
            "data": {"train": str(self.folder / "packed"), "sequence_length": self.sequence, "order": "sequential",
                     "document_mask": True},
            "batch": {"micro": self.micro, "global": self.micro * self.accumulation},
            "optimizer": {"lr": self.rate(kind), "betas": RECIPE["betas"], "eps": RECIPE["eps"],
                          "weight_decay": RECIPE["weight_decay"], "clip_grad_norm": RECIPE["clip"]},
            "lr_schedule": {"kind": "cosine", "warmup_steps": self.warmup(), "min_lr": self.rate(kind) / 10},
            "precision": {"compute": "fp32"}, "log": {"tensorboard": False}}
        if KINDS[kind] is not None:
            config["lora"] = {"rank": self.rank, "alpha": self.alpha, "targets": TARGETS, **KINDS[kind]}
            config["init"]["adapter"] = str(self.folder / f"start_{kind}")
        path = self.folder / f"{pathlib.Path(run).name}.json"
        path.write_text(json.dumps(config))
        return path

    def warmup(self):
        return min(RECIPE["warmup"], self.steps - 1)

    def plan(self, kind, ranks=1, *settings):
        return json.loads(self.bench.train("plan", self.config(kind, self.folder / "planned"), "--world", ranks,
                                           "--json", *settings)[1])

    def ours(self, kind, ranks=1, *settings):
        """Lines of a run's steps, its folder, the memory of the process."""
        run = self.folder / f"run_{kind}"
        shutil.rmtree(run, ignore_errors=True)
        memory = self.bench.ranks(ranks, self.config(kind, run), *settings)[2]
        lines = [json.loads(line) for line in open(run / "metrics.jsonl")]
        return [line for line in lines if line["kind"] == "step"], run, memory

    def request(self, action, kind, **more):
        return {"action": action, "model": self.base, "kind": kind, "start": self.folder / f"start_{kind}",
                "folder": self.folder / "trl", "conversations": self.talks, "steps": self.steps, "micro": self.micro,
                "accumulation": self.accumulation, "sequence": self.sequence, "lr": self.rate(kind),
                "min_lr": self.rate(kind) / 10, "warmup": self.warmup(), "checkpointing": False,
                **{key: RECIPE[key] for key in ("betas", "eps", "weight_decay", "clip")}, **more}

    def theirs(self, kind, **more):
        """Answer of a process of its own, and its memory."""
        answers, memory = self.bench.theirs([self.request("train", kind, **more)])
        return answers[0], memory

    def windows(self):
        """Of the token files: ids, lengths of documents without the padding, which tokens count."""
        prefix = self.folder / "packed"
        index = pathlib.Path(f"{prefix}.idx").read_bytes()
        kind, sequences, documents = struct.unpack_from("<BQQ", index, 17)
        lengths = struct.unpack_from(f"<{sequences}i", index, 34)
        bounds = struct.unpack_from(f"<{documents}q", index, 34 + 12 * sequences)
        data = pathlib.Path(f"{prefix}.bin").read_bytes()
        ids = struct.unpack(f"<{len(data) // (2 if kind == 8 else 4)}{'H' if kind == 8 else 'i'}", data)
        mask = pathlib.Path(f"{prefix}.mask").read_bytes()
        return [{"ids": ids[i * self.sequence:(i + 1) * self.sequence], "lengths": lengths[first:last],
                 "counts": mask[i * self.sequence:(i + 1) * self.sequence]}
                for i, (first, last) in enumerate(zip(bounds, bounds[1:]))
                if (i + 1) * self.sequence <= len(ids)]


def same_windows(ours, theirs):
    """Their windows end where their documents do; ours are padded, by a sequence that never counts."""
    if len(ours) != len(theirs):
        return False
    for mine, other in zip(ours, theirs):
        n = len(other["ids"])
        if list(mine["ids"][:n]) != other["ids"] or list(mine["counts"][:n]) != other["counts"] or any(
                mine["counts"][n:]) or list(mine["lengths"][:len(other["lengths"])]) != other["lengths"]:
            return False
    return True


def compare_packing(case, theirs):
    tokens, counted = sum(len(each["ids"]) for each in theirs), sum(sum(each["counts"]) for each in theirs)
    ours = case.windows()
    same = case.bench.check(same_windows(ours, theirs), f"{case.family}: {len(ours)} windows, of trl {len(theirs)}; "
                            f"{tokens} tokens, {counted} of them targets")
    return {"family": case.family, "windows": len(theirs), "tokens": tokens, "targets": counted,
            "documents": sum(len(each["lengths"]) for each in theirs),
            "truncated": sum(max(each["lengths"]) == case.sequence for each in theirs),
            "filled": tokens / len(theirs) / case.sequence, "same": same}


def compare_losses(case, kind, theirs):
    lines, run, _ = case.ours(kind)
    losses = [(line["loss"], other) for line, other in zip(lines, theirs["losses"])]
    norms = [(line["grad_norm"], other) for line, other in zip(lines, theirs["norms"])]
    row = {"family": case.family, "kind": kind, "steps": len(losses), "losses": losses, "norms": norms,
           "difference": max(abs(a - b) for a, b in losses),
           "norm_difference": max(abs(a - b) / b for a, b in norms),
           "rates_differ": max(abs(line["lr"] / other - 1) for line, other in zip(lines, theirs["rates"])),
           "clipped": sum(b > RECIPE["clip"] for _, b in norms)}
    passed = row["steps"] == case.steps and row["difference"] <= TOLERANCE and row["rates_differ"] < 1e-9
    case.bench.check(passed, f"{case.family} {kind}: {len(losses)} losses, {losses[0][1]:.4f} to {losses[-1][1]:.4f}, "
                     f"differ by {row['difference']:.1e}, norms by {row['norm_difference']:.1e} of themselves")
    return row, run


def base_of(case, kind):
    """As plain weights: of NF4 what bitsandbytes' codes mean."""
    return case.folder / "dequantized" if kind == "qlora" else case.base


def check_files(case, kind, run):
    """The adapters as files: ours in peft and merged, peft's trained ones here."""
    ours, merged = case.folder / f"adapter_{kind}", case.folder / f"merged_{kind}"
    case.bench.train("export", "--checkpoint", run, "--output", ours)
    case.bench.train("export", "--checkpoint", run, "--output", merged, "--merge", "--dtype", "fp32")
    found = {}
    for name, folder, more in (("ours", ours, ["--merged", merged]), ("theirs", case.folder / f"saved_{kind}", [])):
        code, text, _ = case.bench.run(
            [case.bench.options.python, ROOT / "scripts" / "check_adapter.py", folder, "--base", base_of(case, kind),
             "--train", case.bench.options.train, *more], may_fail=True)
        case.bench.check(code == 0, f"{case.family} {kind}, {name}: "
                         + "; ".join(line[7:] for line in text.strip().splitlines()))
        merge = re.search(r"--merged: logits differ by (\S+)", text)
        found[name] = {"passed": code == 0, "greedy_ids": sum(map(int, re.findall(r"generate: (\d+) greedy", text))),
                       **({"merged": float(merge[1])} if merge else {})}
    return found


def compare_trained(case, rows):
    """Losses over all windows: of our adapters by `train evaluate` and by peft, and of those that trl trained."""
    requests = [case.request("loss", row["kind"], base=base_of(case, row["kind"]), adapter=case.folder / name)
                for row in rows for name in (f"adapter_{row['kind']}", f"saved_{row['kind']}")]
    found = [each["loss"] for each in case.bench.theirs(requests)[0]]
    for i, row in enumerate(rows):
        text = case.bench.train("evaluate", "--checkpoint", case.folder / f"adapter_{row['kind']}", "--base",
                                base_of(case, row["kind"]), "--data", case.folder / "packed", "--sequence-length",
                                case.sequence, "--document-mask", "--json")[1]
        row["evaluate_difference"] = abs(json.loads(text)["loss"] - found[2 * i])
        row["trained_difference"] = abs(found[2 * i + 1] - found[2 * i])
        case.bench.check(row["evaluate_difference"] <= 1e-5, f"{case.family} {row['kind']}: over all windows the loss "
                         f"by evaluate is peft's to {row['evaluate_difference']:.1e}, that of trl's adapters ours to "
                         f"{row['trained_difference']:.1e}")


def part_losses(bench):
    rows, packing = [], []
    for family in FAMILIES:
        case = Case(bench, "losses", family)
        case.make()
        trained, _ = bench.theirs([case.request("train", kind, windows=kind == "full",
                                                save=case.folder / f"saved_{kind}") for kind in KINDS])
        packing.append(compare_packing(case, trained[0]["windows"]))
        for kind, theirs in zip(KINDS, trained):
            row, run = compare_losses(case, kind, theirs)
            if kind != "full":
                row["files"] = check_files(case, kind, run)
            rows.append(row)
        compare_trained(case, [row for row in rows if row["family"] == family and "files" in row])
    return {"rows": rows, "packing": packing}


def counted(case, kind, ranks):
    """Bytes of a parameter of the base and of the adapters, from plans of two ranks of adapters."""
    keys = ["--set", f"parallel.zero_stage={3 if ranks > 1 else 0}", "--set", f"batch.global={ranks}"]
    held = ("parameters", "gradients", "optimizer")
    wider = [] if kind == "full" else ["--set", f"lora.rank={2 * case.rank}", "--set", "init.adapter=null"]
    plans = [case.plan(kind, ranks, *keys), case.plan(kind, ranks, *keys, *wider)]
    sizes = [sum(plan["ranks"][0]["memory_bytes"][key] for key in held) for plan in plans]
    totals = [plan["parameters"]["total"] for plan in plans]
    row = {"kind": kind, "ranks": ranks, "memory_bytes": plans[0]["ranks"][0]["memory_bytes"],
           "flops_per_token": plans[0]["model_flops_per_token"], "keys": keys}
    if kind == "full":
        return {**row, "base": totals[0], "base_bytes": sizes[0] / totals[0]}
    adapters = totals[1] - totals[0]
    each = (sizes[1] - sizes[0]) / adapters
    return {**row, "adapters": adapters, "adapter_bytes": each, "base": totals[0] - adapters,
            "base_bytes": (sizes[0] - each * adapters) / (totals[0] - adapters)}


def part_plan(bench):
    case = Case(bench, "memory", "qwen3")
    case.make()
    rows = []
    for kind in ("full", "lora", "qlora"):
        for ranks in (1, 4):
            row = counted(case, kind, ranks)
            threads = bench.options.threads if ranks == 1 else 1
            steps = case.ours(kind, ranks, *row.pop("keys"), "--set", f"run.threads_per_rank={threads}", "--set",
                              "run.steps=1", "--set", "lr_schedule.warmup_steps=0")[0]
            row["peak_bytes"] = steps[-1]["memory_bytes"]
            rows.append(row)
            print(json.dumps(row), flush=True)
    whole, lora = rows[0], rows[2]
    forward = whole["flops_per_token"] / 3
    backward = lora["flops_per_token"] - forward - 2 * lora["adapters"]
    return {"rows": rows, "left_out": 1 - backward / (2 * forward),
            "left_out_without_adapters": 1 - (backward - 4 * lora["adapters"]) / (2 * forward)}


def part_memory(bench):
    case = Case(bench, "memory", "qwen3")
    case.make()
    rows = []
    for kind in ("full", "lora", "qlora"):
        for recompute in (False, True):
            keys = ["--set", f"parallel.recompute={'full' if recompute else 'none'}"]
            answer, theirs = case.theirs(kind, checkpointing=recompute)
            rows.append({"kind": kind, "recompute": recompute, "ours": case.ours(kind, 1, *keys)[2], "theirs": theirs,
                         "imported": answer["imported_bytes"],
                         "planned": case.plan(kind, 1, *keys)["memory_bytes_max"]})
            print(json.dumps(rows[-1]), flush=True)
    return {"rows": rows}


def part_speed(bench):
    case = Case(bench, "speed", "qwen3")
    case.make()
    found, tokens = {}, []

    def ours(kind):
        return [line["step_seconds"] for line in case.ours(kind)[0]][2:]

    def theirs(kind):
        answer = case.theirs(kind)[0]
        tokens[:] = answer["step_tokens"][2:]
        return answer["seconds"][1:]

    for _ in range(bench.options.rounds):
        for kind in ("full", "lora", "dora", "qlora"):
            for side, measure in (("trl", theirs), ("ours", ours)):
                foreign, seconds = bench.quiet(lambda: measure(kind))
                rate = statistics.median(n / s for n, s in zip(tokens, seconds, strict=True))
                row = found.setdefault((kind, side), {"kind": kind, "side": side, "rates": [], "foreign": []})
                row["rates"].append(rate)
                row["foreign"].append(foreign)
                print(f"{kind} {side}: {rate:.0f} tokens/s, others had {100 * foreign:.0f} %", flush=True)
    return {"rows": list(found.values())}


PARTS = {"losses": part_losses, "plan": part_plan, "memory": part_memory, "speed": part_speed}
MIB = 1 << 20


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head),
            *("| " + " | ".join(map(str, row)) + " |" for row in rows), ""]


def page_of_losses(part):
    text = ["## Tokens, masks, windows", ""]
    text += table(["model", "conversations packed", "windows", "tokens", "targets", "filled", "equal"],
                  [[each["family"], each["documents"], each["windows"], each["tokens"], each["targets"],
                    f"{100 * each['filled']:.1f} %", "yes" if each["same"] else "NO"] for each in part["packing"]])
    text += ["## Losses", ""]
    text += table(["model", "trained", "trl's loss, first to last", "largest difference of a loss",
                   "of a gradient norm, relative", "steps clipped"],
                  [[row["family"], NAMES[row["kind"]], f"{row['losses'][0][1]:.4f} to {row['losses'][-1][1]:.4f}",
                    f"{row['difference']:.1e}", f"{row['norm_difference']:.1e}", row["clipped"]]
                   for row in part["rows"]])
    text += ["## Files", ""]
    text += table(["model", "adapters", "merged beside peft, of the largest logit", "greedy ids equal, ours and trl's",
                   "loss by evaluate beside peft", "loss of trl's adapters beside ours"],
                  [[row["family"], NAMES[row["kind"]], f"{row['files']['ours']['merged']:.1e}",
                    f"{row['files']['ours']['greedy_ids']}, {row['files']['theirs']['greedy_ids']}",
                    f"{row['evaluate_difference']:.1e}", f"{row['trained_difference']:.1e}"]
                   for row in part["rows"] if "files" in row])
    return text


def page_of_plan(part):
    text = ["## Bytes of a parameter and FLOPs as planned", ""]
    text += table(["trained", "ranks", "base, bytes a parameter", "adapters", "planned MiB a rank",
                   "peak MiB of a rank", "FLOPs a token"],
                  [[NAMES[row["kind"]], row["ranks"], f"{row['base_bytes']:.2f}",
                    f"{row['adapter_bytes']:.2f}" if "adapters" in row else "",
                    f"{row['memory_bytes']['total'] / MIB:.0f}", f"{row['peak_bytes'] / MIB:.0f}",
                    f"{row['flops_per_token'] / 1e6:.0f} M"] for row in part["rows"]])
    return text + [f"A frozen base leaves out {100 * part['left_out_without_adapters']:.1f} % of a backward pass's "
                   f"FLOPs, {100 * part['left_out']:.1f} % with what adapters add.", ""]


def page_of_memory(part):
    rows = [[NAMES[row["kind"]], "recomputed" if row["recompute"] else "kept",
             *(f"{each / MIB:.0f}" for each in (
                 row["ours"]["peak"], row["ours"]["anonymous"], row["planned"], row["theirs"]["peak"],
                 row["theirs"]["anonymous"], row["imported"])),
             f"{row['ours']['peak'] / row['theirs']['peak']:.2f}"] for row in part["rows"]]
    return ["## Peak memory of a process, MiB", "", *table(
        ["trained", "activations", "ours", "without pages of files", "planned", "trl", "without pages of files",
         "of it before the model", "ours / trl"], rows)]


def median_of(row):
    """Of the rounds during which others had little, or of all where there was none."""
    quiet = [rate for rate, foreign in zip(row["rates"], row["foreign"]) if foreign <= FOREIGN_MAX]
    return statistics.median(quiet or row["rates"])


def page_of_speed(part):
    rows = []
    for kind in dict.fromkeys(row["kind"] for row in part["rows"]):
        sides = [row for side in ("ours", "trl") for row in part["rows"] if (row["kind"], row["side"]) == (kind, side)]
        shown = [f"{median_of(row):.0f} (" + ", ".join(
            f"{rate:.0f} beside {100 * foreign:.0f} %" for rate, foreign in zip(row["rates"], row["foreign"])) + ")"
                 for row in sides]
        rows.append([NAMES[kind], *shown, f"{median_of(sides[0]) / median_of(sides[1]):.2f}"])
    return ["## Speed, tokens a second", "", "In brackets each round, and what others had of the cores.", "",
            *table(["trained", "ours", "trl", "ratio"], rows)]


PAGES = {"losses": page_of_losses, "plan": page_of_plan, "memory": page_of_memory, "speed": page_of_speed}


NOTES = """\
Their side is trl's SFTTrainer as it is: its templates, masks of the assistant, packing (bfd) and loss, windows in
order, attention (sdpa) inside documents by position ids. It is given AdamW without decay of vectors and the
schedule whose first update is warm already, as here, and no gradient checkpointing but where activations are
recomputed. Beside NF4 (Linear4bit of bitsandbytes on the CPU, trained) trl rounds adapters to bf16; that is
switched off. Adapters begin as peft began them, read here by `init.adapter`. Tokens of speed are those without
padding.
"""


def page(data):
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    text = ["# Fine-tuning on conversations beside trl", "", "By `tests/bench/fine_tuning_beside_trl.py`, in fp32, on "
            f"{data['cpu']}, {data['cores']} cores; {versions}.", "", NOTES]
    for name, part in data["parts"].items():
        text += PAGES[name](part)
        text += [f"*{part['date']}, {part['train']}, {part['threads']} threads, load {part['loads'][0]:.1f} before and "
                 f"{part['loads'][1]:.1f} after.*", ""]
    return "\n".join(text)


def measured(bench, name):
    options, before = bench.options, os.getloadavg()[0]
    about = bench.train("--version")[1].splitlines()[0].strip()
    return {**PARTS[name](bench), "date": datetime.date.today().isoformat(), "train": about,
            "threads": options.threads, "loads": [before, os.getloadavg()[0]]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=pathlib.Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--patience", type=float, default=120)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "runs" / "fine_tuning_beside_trl")
    options = parser.parse_args()
    options.train = options.train.resolve()
    file = options.output / "data.json"
    data = json.loads(file.read_text()) if file.exists() else {"parts": {}}
    options.output.mkdir(parents=True, exist_ok=True)
    failures = 0
    for name in options.parts.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            bench = Bench(options, pathlib.Path(scratch))
            data["parts"][name] = measured(bench, name)
            data.update(versions=bench.versions, cpu=cpu_name(), cores=os.cpu_count())
            failures += bench.failures
        file.write_text(json.dumps(data, indent=1) + "\n")
        (options.output / "README.md").write_text(page(data))
    print(page(data))
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
