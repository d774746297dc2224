"""Turns the measurements of bench.py into data.json, README.md and speed.png."""

import json

import machine

# Of the issue that asked for the comparison: speed beside PyTorch's best, share of the sgemm rate
# (each as goal, and what is a failure where that is less), all in fp32.
TARGETS = {
    "S": {"speed": (1.3, 1.3), "share": (0.70, 0.70)},
    "M": {"speed": (1.1, 1.05), "share": (0.88, 0.84)},
    "L": {"speed": (1.25, 1.25), "share": (0.85, 0.85)},
}
BF16_SPEED = 1.5
MEMORY = 0.6

NAMES = {
    ("trireme", "threads"): "Trireme, threads", ("trireme", "ranks"): "Trireme, ranks",
    ("trireme", "ranks ZeRO 1"): "Trireme, ranks, ZeRO 1",
    ("pytorch", "eager"): "PyTorch eager", ("pytorch", "compiled"): "PyTorch compiled",
    ("pytorch", "ddp eager"): "PyTorch DDP eager",
    ("pytorch", "ddp compiled"): "PyTorch DDP compiled",
    ("pytorch", "by sequence"): "PyTorch compiled, by sequence",
}


def rates_of(data):
    """The best seen in any round, on both sides: products and copy."""
    sources = {"sgemm_gflops": ("sgemm_gflops", "sgemm_gflops"),
               "bf16_gemm_gflops": ("bf16_gflops", "bf16_gemm_gflops"),
               "copy_gb_per_second": ("copy_gb_per_second", "copy_gb_per_second")}
    return {name: {"train": max(rate["train"][ours] or 0 for rate in data["rates"]),
                   "pytorch": max(rate["pytorch"].get(theirs, 0) for rate in data["rates"])}
            for name, (ours, theirs) in sources.items()}


def summarise(data):
    """The rows of the table: for every row the best round, both sides by the same rule."""
    rates = rates_of(data)
    products = {"fp32": rates["sgemm_gflops"], "bf16": rates["bf16_gemm_gflops"]}
    rows = []
    for size, facts in data["sizes"].items():
        for dtype in ("fp32", "bf16"):
            group = []
            for (side, row), name in NAMES.items():
                wanted = (size, dtype, side, row)
                rounds = [m for m in data["measurements"] if "error" not in m
                          and (m["size"], m["dtype"], m["side"], m["row"]) == wanted]
                if not rounds:
                    continue
                best = max(rounds, key=lambda m: m["tokens_per_second"])
                gflops = best["tokens_per_second"] * facts["flops_per_token"] * 1e-9
                product = products[dtype]["train"]
                group.append({
                    "size": size, "dtype": dtype, "side": side, "row": row, "name": name,
                    "ranks": best["ranks"], "threads_per_rank": best["threads_per_rank"],
                    "tokens_per_second": best["tokens_per_second"],
                    "rounds": [m["tokens_per_second"] for m in rounds], "gflops": gflops,
                    "of_product_rate": gflops / product if product else None,
                    "memory_bytes": min(sum(m["memory_bytes"]) for m in rounds),
                    "memory_largest_rank": min(max(m["memory_bytes"]) for m in rounds),
                    "memory_before_model": min(m.get("memory_before_model_bytes", 0)
                                               for m in rounds),
                    "best_round": best["round"],
                    "time": best.get("time"),
                })
            compare(group)
            rows += group
    return {"rates": rates, "rows": rows, "targets": judge(rows)}


def compare(group):
    """Rows of one size and type. Speed is beside PyTorch's fastest row of all, memory beside its
    fastest row with as many processes: each process holds the weights."""

    def fastest(rows):
        return max(rows, key=lambda row: row["tokens_per_second"], default=None)

    theirs = [row for row in group if row["side"] == "pytorch"]
    best = fastest(theirs)
    for row in group:
        row["is_pytorch_best"] = row is best
        row["of_pytorch"] = best and row["tokens_per_second"] / best["tokens_per_second"]
        alike = fastest([other for other in theirs if other["ranks"] == row["ranks"]])
        row["memory_of_pytorch"] = alike and row["memory_bytes"] / alike["memory_bytes"]


def judge(rows):
    targets = []

    def add(row, what, found, goal, least, smaller=False):
        if found is None:
            return
        met = found <= goal if smaller else found >= goal
        enough = not smaller and found >= least
        targets.append({"size": row["size"], "row": row["name"], "dtype": row["dtype"],
                        "what": what, "goal": goal, "found": found,
                        "verdict": "met" if met else "short of the goal, no failure" if enough
                        else "not met"})

    for row in rows:
        if row["side"] != "trireme":
            continue
        if row["dtype"] == "fp32":
            wanted = TARGETS[row["size"]]
            add(row, "speed, of PyTorch's best", row["of_pytorch"], *wanted["speed"])
            add(row, "share of the sgemm rate", row["of_product_rate"], *wanted["share"])
        else:
            single = [r for r in rows if (r["size"], r["dtype"], r["side"], r["row"])
                      == (row["size"], "fp32", "trireme", row["row"])]
            if single:
                add(row, "speed, of our fp32",
                    row["tokens_per_second"] / single[0]["tokens_per_second"],
                    BF16_SPEED, BF16_SPEED)
        add(row, "memory, of PyTorch's", row["memory_of_pytorch"], MEMORY, MEMORY, True)
    return targets


def percent(value):
    return "" if value is None else f"{100 * value:.0f} %"


def ratio(value):
    return "" if value is None else f"{value:.2f}"


def mib(value):
    return f"{value / 2**20:,.0f}"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def targets_table(targets):
    names = [name for name in NAMES.values() if any(t["row"] == name for t in targets)]
    lines = {}
    for target in targets:
        key = (target["size"], target["dtype"], target["what"], f"{target['goal']:.2f}")
        lines.setdefault(key, {})[target["row"]] = f"{target['found']:.2f}: {target['verdict']}"
    return table(["size", "", "target", "goal", *names],
                 [[*key, *(found.get(name, "") for name in names)]
                  for key, found in lines.items()])


def profile_tables(profile):
    """What `train benchmark` says of its step: what bounds it; of one rank also the longest ops."""
    text = []
    for run in profile:
        name = NAMES["trireme", run["row"]]
        text += ["", f"{name}, {run['dtype']}: where the step goes", "", table(
            ["part", "ms", "of the step", "of what the machine can do"],
            [[bound["part"], f"{1e3 * bound['seconds']:.3f}", percent(bound["share"]),
              percent(bound["of_rate"])] for bound in run["bounds"]])]
        if run["row"] != "threads":
            continue
        ops = sorted(run["ops"], key=lambda op: -op["seconds"])[:10]
        text += ["", table(
            ["op", "phase", "calls", "ms", "of the step", "GFLOP/s", "GB/s", "bound",
             "of the bound"],
            [[op["op"], op["phase"], op["calls"], f"{1e3 * op['seconds']:.3f}",
              percent(op["share"]), f"{op['gflops']:.0f}", f"{op['gb_per_second']:.1f}",
              op["bound"], percent(op["of_rate"])] for op in ops])]
    return text


def size_section(size, facts, rows):
    model, mine = facts["model"], [row for row in rows if row["size"] == size]
    text = [
        f"## {size}", "",
        f"{model['num_hidden_layers']} layers, {model['num_attention_heads']} heads "
        f"({model['num_key_value_heads']} key/value), hidden {model['hidden_size']}, "
        f"ffn {model['intermediate_size']}, vocabulary {model['vocab_size']:,}: "
        f"{facts['check']['parameters']:,} parameters; {facts['batch']} x {facts['sequence']} "
        f"tokens a step; {facts['flops_per_token'] * 1e-6:.1f} MFLOP a token; "
        f"{facts['steps']['steps']} timed steps in each round.",
        "",
        "Two updates from the same weights on the same samples: losses and gradient norms of both "
        f"sides agree within {facts['check']['largest_relative_difference']:.0e}.", ""]
    text.append(table(
        ["run", "", "ranks x threads", "tokens/s", "each round", "of PyTorch's best", "GFLOP/s",
         "of the product rate", "peak MiB", "of PyTorch's"],
        [[("**" + row["name"] + "**" if row["side"] == "trireme" else row["name"])
          + (" (best)" if row["is_pytorch_best"] else ""), row["dtype"],
          f"{row['ranks']} x {row['threads_per_rank']}", f"{row['tokens_per_second']:,.0f}",
          ", ".join(f"{rate:,.0f}" for rate in row["rounds"]),
          ratio(row["of_pytorch"]), f"{row['gflops']:.0f}",
          percent(row["of_product_rate"]),
          mib(row["memory_bytes"]) + (f" ({mib(row['memory_largest_rank'])} the largest)"
                                      if row["ranks"] > 1 else ""),
          ratio(row["memory_of_pytorch"])]
         for row in mine]))
    timed = [row for row in mine if row["time"]]
    if timed:
        phases = list(timed[0]["time"])
        text += ["", "Seconds of a step, rank 0:", "", table(
            ["run", "", *(phase.replace("_", " ") for phase in phases)],
            [[row["name"], row["dtype"], *(f"{row['time'][phase]:.4f}" for phase in phases)]
             for row in timed])]
    text += profile_tables(facts.get("profile", []))
    before = [row["memory_before_model"] for row in mine if row["memory_before_model"]]
    if before:
        text += ["", f"Of PyTorch's memory {mib(max(before))} MiB a process are there before the "
                 "model: interpreter, libraries."]
    return "\n".join(text)


def write_markdown(data, summary, path):
    rates = summary["rates"]
    names = {"sgemm_gflops": "matrix product, fp32, GFLOP/s",
             "bf16_gemm_gflops": "matrix product, bf16, GFLOP/s",
             "copy_gb_per_second": "copy, GB/s (read + written)"}
    parts = [
        "# Training beside PyTorch", "",
        f"`{data['options']['command']}` made this and repeats it. Each row "
        "trained the same model with the same batch on the same cores, in turns within one run, "
        f"over {data['options']['rounds']} round(s). Of a round the median step counts, of a row "
        "its best round. Speed is beside PyTorch's fastest row of the same type. Shares are of the rate of a "
        "large matrix product of that type by `train`, best seen in the same run. Memory is the peak "
        "resident set, summed over ranks (the least of the rounds: the first compiles), beside "
        "PyTorch's fastest row with as many processes.",
        "", machine.describe_markdown(data["machine"]), "",
        table(["rates", "train", "PyTorch"],
              [[name, *(f"{value:,.0f}" if value else "not measured"
                        for value in rates[key].values())] for key, name in names.items()]), "",
        "![speed and memory](speed.png)", "",
        "## Targets", "",
        targets_table(summary["targets"]), ""]
    parts += [size_section(size, facts, summary["rows"]) + "\n"
              for size, facts in data["sizes"].items()
              if any(row["size"] == size for row in summary["rows"])]
    path.write_text("\n".join(parts))


COLOURS = {("trireme", "fp32"): "#0b6e99", ("trireme", "bf16"): "#7cc4de",
           ("pytorch", "fp32"): "#c2571a", ("pytorch", "bf16"): "#efb48c"}


def bars(axes, rows, value, text):
    """One group of bars for each name, the types below each other, figures at their ends."""
    names = [name for name in NAMES.values() if any(row["name"] == name for row in rows)]
    dtypes = sorted({row["dtype"] for row in rows}, reverse=True)
    height = 0.8 / len(dtypes)
    longest = max(value(row) for row in rows)
    for row in rows:
        y = names.index(row["name"]) - 0.4 + height * (dtypes.index(row["dtype"]) + 0.5)
        axes.barh(y, value(row), height * 0.92, color=COLOURS[row["side"], row["dtype"]])
        axes.text(value(row) + 0.01 * longest, y, text(row), va="center", fontsize=8,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8})
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 1.22 * longest)
    axes.grid(axis="x", alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw(data, summary, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import patches, pyplot
    from matplotlib.ticker import MaxNLocator

    sizes = [size for size in data["sizes"] if any(r["size"] == size for r in summary["rows"])]
    names = {row["name"] for row in summary["rows"]}
    height = 0.9 + 0.42 * len(names)
    figure, grid = pyplot.subplots(2, len(sizes), squeeze=False, layout="constrained",
                                   figsize=(max(4.6 * len(sizes), 6.5), 2 * height + 1.1))
    dtypes = []
    for column, size in enumerate(sizes):
        rows = [row for row in summary["rows"] if row["size"] == size]
        dtypes = [d for d in ("fp32", "bf16") if any(row["dtype"] == d for row in rows)]
        model = data["sizes"][size]["model"]
        speed, memory = grid[0][column], grid[1][column]
        bars(speed, rows, lambda row: row["tokens_per_second"],
             lambda row: f"{row['tokens_per_second']:,.0f}")
        best = [row for row in rows if row["is_pytorch_best"] and row["dtype"] == "fp32"]
        if best:
            goal = TARGETS[size]["speed"][0]
            speed.axvline(goal * best[0]["tokens_per_second"], color="#444444", linestyle="--",
                          linewidth=1, zorder=0)
            speed.set_xlim(0, max(speed.get_xlim()[1], 1.1 * goal * best[0]["tokens_per_second"]))
        speed.set_title(f"{size}: {model['num_hidden_layers']} layers, hidden "
                        f"{model['hidden_size']}, vocabulary {model['vocab_size']:,}", fontsize=10)
        speed.set_xlabel("tokens/s" + (f"   (dashed: {goal} x PyTorch's best, fp32)"
                                       if best else ""), fontsize=9)
        bars(memory, rows, lambda row: row["memory_bytes"] / 2**20,
             lambda row: mib(row["memory_bytes"]))
        memory.set_xlabel("peak resident memory, all ranks, MiB", fontsize=9)
        for axes in (speed, memory):
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.tick_params(labelsize=8.5)
            if column:
                axes.set_yticklabels([])
    about = data["machine"]
    figure.suptitle(f"Training a Llama on {about['threads']} cores of {about['cpu']['model']}, "
                    f"{about['date']}, PyTorch {about['torch']}, commit {about['commit']}",
                    fontsize=11)
    figure.legend(handles=[patches.Patch(color=COLOURS[side, dtype], label=f"{name} {dtype}")
                           for side, name in (("trireme", "Trireme"), ("pytorch", "PyTorch"))
                           for dtype in dtypes],
                  loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(path, dpi=140)
    pyplot.close(figure)


def write(data, directory):
    summary = summarise(data)
    (directory / "data.json").write_text(json.dumps({**data, "summary": summary}, indent=1) + "\n")
    write_markdown(data, summary, directory / "README.md")
    draw(data, summary, directory / "speed.png")
