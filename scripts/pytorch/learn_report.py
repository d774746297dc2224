"""Judges and draws what learn.py found: tables in README.md, *.csv and data.json, learning.png."""

import json

import numpy

import machine

# The final losses, relative to those of PyTorch in fp32.
TOLERANCE = 0.005
# The first step is the same computation, and the learning rates are the same numbers.
FIRST_LOSS_TOLERANCE, FIRST_NORM_TOLERANCE, RATE_TOLERANCE = 1e-5, 1e-4, 1e-12
REFERENCE = "pytorch-fp32"
NAMES = {"pytorch-fp32": "PyTorch fp32", "trireme-fp32": "Trireme fp32",
         "trireme-bf16": "Trireme bf16", "pytorch-bf16": "PyTorch bf16 autocast"}
COLOURS = {"pytorch-fp32": "#222222", "trireme-fp32": "#0b6e99",
           "trireme-bf16": "#3aa655", "pytorch-bf16": "#c2571a"}


def column(lines, kind, key):
    return numpy.array([line[key] for line in lines if line["kind"] == kind], dtype=float)


def relative(values, reference):
    return values / reference - 1


class Curves:
    """The runs as arrays, over the same steps and evaluations."""

    def __init__(self, runs, steps):
        self.names = [name for name in NAMES if name in runs]
        self.loss = {name: column(runs[name], "step", "loss") for name in self.names}
        self.norm = {name: column(runs[name], "step", "grad_norm") for name in self.names}
        self.rate = {name: column(runs[name], "step", "lr") for name in self.names}
        self.held_out = {name: column(runs[name], "evaluation", "loss") for name in self.names}
        self.held_out_steps = column(runs[REFERENCE], "evaluation", "step").astype(int)
        self.held_out_tokens = int(column(runs[REFERENCE], "evaluation", "tokens")[-1])
        self.last = min(100, max(steps // 10, 1))
        for name in self.names:
            if list(column(runs[name], "step", "step")) != list(range(1, steps + 1)):
                raise ValueError(f"{name}: not every step stands once")
            if list(column(runs[name], "evaluation", "step")) != list(self.held_out_steps) or int(
                    column(runs[name], "evaluation", "tokens")[-1]) != self.held_out_tokens:
                raise ValueError(f"{name}: other evaluations than {REFERENCE}")

    def final(self, name):
        return {"training": float(self.loss[name][-self.last:].mean()),
                "held out": float(self.held_out[name][-1])}


def judge(curves):
    checks = []

    def check(what, found, tolerance):
        # A loss that is no number fails every comparison.
        checks.append({"what": what, "found": found, "tolerance": tolerance,
                       "passed": bool(abs(found) <= tolerance)})

    ours, theirs = "trireme-fp32", REFERENCE
    check("fp32: loss of the first step",
          float(relative(curves.loss[ours], curves.loss[theirs])[0]), FIRST_LOSS_TOLERANCE)
    check("fp32: gradient norm of the first step",
          float(relative(curves.norm[ours], curves.norm[theirs])[0]), FIRST_NORM_TOLERANCE)
    check("learning rate of every step",
          float(abs(relative(curves.rate[ours], curves.rate[theirs])).max()), RATE_TOLERANCE)
    check("losses that are no numbers",
          sum(int((~numpy.isfinite(values[name])).sum())
              for values in (curves.loss, curves.held_out) for name in curves.names), 0)
    reference = curves.final(theirs)
    for name in curves.names:
        if not name.startswith("trireme"):
            continue
        for what, value in curves.final(name).items():
            check(f"{NAMES[name]}: final loss, {what}", value / reference[what] - 1, TOLERANCE)
    return checks


def running_mean(values, width):
    width = min(width, len(values))
    return numpy.convolve(values, numpy.ones(width) / width, mode="valid")


def draw(curves, data, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    tokens = data["tokens_per_step"] * 1e-6
    steps = numpy.arange(1, data["steps"] + 1) * tokens
    at = curves.held_out_steps * tokens
    styles = {"pytorch-fp32": ("-", 3.2), "trireme-fp32": ("-", 1.2),
              "trireme-bf16": ("--", 1.2), "pytorch-bf16": (":", 1.4)}
    figure, (upper, lower) = pyplot.subplots(
        2, 1, sharex=True, figsize=(9, 8), layout="constrained",
        gridspec_kw={"height_ratios": [3, 2]})
    smooth = max(data["steps"] // 120, 1)
    for name in curves.names:
        # The reference is drawn broad and pale below, so that a curve upon it can be seen.
        style, width = styles[name]
        mean = running_mean(curves.loss[name], smooth)
        upper.plot(steps[-len(mean):], mean, style, linewidth=width, color=COLOURS[name],
                   alpha=0.35 if name == REFERENCE else 0.9,
                   label=f"{NAMES[name]}, mean of {smooth} steps")
        upper.plot(at, curves.held_out[name], "o" if name == REFERENCE else ".",
                   color=COLOURS[name], markersize=9 if name == REFERENCE else 5,
                   markerfacecolor="none" if name == REFERENCE else COLOURS[name],
                   label=f"{NAMES[name]}, held out")
    upper.set_ylabel("loss (nats a byte)")
    upper.set_yscale("log")
    upper.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    upper.yaxis.set_minor_formatter(lambda value, _: f"{value:.2g}")
    upper.legend(frameon=False, fontsize=8.5, ncols=2)
    model = data["config"]["model"]
    upper.set_title(
        f"The same samples from the same weights: {data['steps'] * tokens:.1f} M tokens, "
        f"{data['parameters'] * 1e-6:.2f} M parameters (hidden {model['hidden_size']}, "
        f"{model['num_hidden_layers']} layers)\n{data['machine']['cpu']['model']}, "
        f"{data['machine']['date']}, PyTorch {data['machine']['torch']}, "
        f"commit {data['machine']['commit']}", fontsize=10)

    width = curves.last
    lower.axhspan(-100 * TOLERANCE, 100 * TOLERANCE, color="#222222", alpha=0.07,
                  label=f"within {100 * TOLERANCE:g} %")
    lower.axhline(0, color="#222222", linewidth=0.8)
    reach = 2 * TOLERANCE
    for name in curves.names:
        if name == REFERENCE:
            continue
        difference = relative(curves.loss[name], curves.loss[REFERENCE])
        mean = running_mean(difference, width)
        lower.plot(steps, 100 * difference, linewidth=0.4, alpha=0.13, color=COLOURS[name])
        lower.plot(steps[-len(mean):], 100 * mean, styles[name][0], linewidth=1.6,
                   color=COLOURS[name], label=f"{NAMES[name]}, mean of {width} steps")
        lower.plot(at, 100 * relative(curves.held_out[name], curves.held_out[REFERENCE]), "o",
                   markersize=4, color=COLOURS[name])
        reach = max(reach, 1.2 * abs(mean).max())
    lower.set_ylim(-100 * reach, 100 * reach)
    lower.set_ylabel("difference to PyTorch fp32, %")
    lower.set_xlabel("million tokens (dots: held-out text)")
    lower.legend(frameon=False, fontsize=8.5, ncols=2)
    for axes in (upper, lower):
        axes.grid(alpha=0.2, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.margins(x=0.01)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def write_tables(curves, data, directory):
    names = curves.names
    with (directory / "steps.csv").open("w") as out:
        print("step", "lr", *names, sep=",", file=out)
        for i in range(data["steps"]):
            print(i + 1, f"{curves.rate[REFERENCE][i]:.6g}",
                  *(f"{curves.loss[name][i]:.7g}" for name in names), sep=",", file=out)
    with (directory / "evaluations.csv").open("w") as out:
        print("step", "tokens", *names, sep=",", file=out)
        for i, step in enumerate(curves.held_out_steps):
            print(step, step * data["tokens_per_step"],
                  *(f"{curves.held_out[name][i]:.7g}" for name in names), sep=",", file=out)


def mlp_text(model):
    if "num_experts" in model:
        return (f"{model['num_experts_per_tok']} of {model['num_experts']} experts of "
                f"{model['moe_intermediate_size']}")
    return f"ffn {model['intermediate_size']}"


def write_markdown(curves, data, path):
    model, config = data["config"]["model"], data["config"]
    reference = curves.final(REFERENCE)
    lines = [
        "# Learning beside PyTorch", "",
        f"`{data['command']}` made this and repeats it. Trireme and PyTorch (transformers' "
        f"{model['model_type']}, PyTorch's AdamW) started from the same weights and saw the same "
        "samples in the same order, as `train data` says them; each loss of each step is compared.", "",
        machine.describe_markdown(data["machine"]), "",
        f"Model: {data['parameters']:,} parameters, {model['num_hidden_layers']} layers, hidden "
        f"{model['hidden_size']}, {model['num_attention_heads']} heads "
        f"({model['num_key_value_heads']} key/value), {mlp_text(model)}, bytes. "
        f"Text: {data['text']}, {data['training_tokens']:,} tokens to train on, "
        f"{curves.held_out_tokens:,} held out. {data['steps']:,} steps of "
        f"{config['batch']['global']} x {config['data']['sequence_length']} tokens, "
        f"{data['steps'] * data['tokens_per_step']:,} in all. AdamW, lr "
        f"{config['optimizer']['lr']:g} after {config['lr_schedule']['warmup_steps']} steps, cosine to "
        f"{config['lr_schedule']['min_lr']:g}, decay {config['optimizer']['weight_decay']:g}, norm "
        f"clipped at {config['optimizer']['clip_grad_norm']:g}. In bf16 both sides keep fp32 "
        "weights.", "", "![both curves, and their difference](learning.png)", "",
        f"| run | loss, mean of the last {curves.last} steps | to PyTorch fp32 | loss, held out | "
        "to PyTorch fp32 | mean of the steps' differences |", "|---|---|---|---|---|---|"]
    for name in curves.names:
        final = curves.final(name)
        apart = abs(relative(curves.loss[name], curves.loss[REFERENCE])).mean()
        beside = {what: "" if name == REFERENCE else f"{100 * (value / reference[what] - 1):+.3f} %"
                  for what, value in final.items()}
        lines.append(f"| {NAMES[name]} | {final['training']:.5f} | {beside['training']} | "
                     f"{final['held out']:.5f} | {beside['held out']} | "
                     f"{'' if name == REFERENCE else f'{100 * apart:.3f} %'} |")
    lines += ["", "| check | found | allowed | |", "|---|---|---|---|"]
    lines += [f"| {check['what']} | {check['found']:+.1e} | {check['tolerance']:g} | "
              f"{'met' if check['passed'] else 'NOT MET'} |" for check in data["checks"]]
    lines += ["", "Every step's losses are in steps.csv, those of the held-out text in "
              "evaluations.csv.", ""]
    path.write_text("\n".join(lines))


def write(data, runs, directory):
    """Writes all files; returns whether every check is met."""
    curves = Curves(runs, data["steps"])
    start = next(line for line in runs["trireme-fp32"] if line["kind"] == "start")
    batch = data["config"]["batch"]["global"]
    data["parameters"] = start["parameters"]
    data["tokens_per_step"] = batch * data["config"]["data"]["sequence_length"]
    data["checks"] = judge(curves)
    data["final"] = {name: curves.final(name) for name in curves.names}
    (directory / "data.json").write_text(json.dumps(data, indent=1) + "\n")
    write_tables(curves, data, directory)
    write_markdown(curves, data, directory / "README.md")
    draw(curves, data, directory / "learning.png")
    return all(check["passed"] for check in data["checks"])
