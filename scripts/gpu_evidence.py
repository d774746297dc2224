#!/usr/bin/env python3
"""Writes docs/gpu_evidence.md, "Why believe the GPU half", from what was recorded.

  scripts/gpu_evidence.py [--check]

Reads the newest tests/bench/results/*-second-executor (foreign.txt of scripts/foreign_kernels.sh), of all records the
newest word (mutations.txt of mutate_ptx.py, kernels.txt of the test kernels_ptx, main_loops.md for
scripts/cycle_account.py), and tests/golden/sass_sm90a.json. --check: exits 1 where the page would change.
"""
import collections
import json
import pathlib
import re
import sys

import cycle_account

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/gpu_evidence.md"

HEAD = """# Why believe the GPU half

Written by `scripts/gpu_evidence.py` from recorded results; do not edit. No figure of ours here comes from a GPU: this page is what
can be known without one, and which line of `scripts/gpu_check.sh` confirms or refutes it. What GPUs confirmed, every op of the table
among it, and what they have not seen yet, several GPUs, stands in the records of [an H100](../tests/bench/results/2026-11-26-h100/README.md),
[an H200](../tests/bench/results/2026-11-26-h200/README.md) and, for fp8 and Hopper's attention, [both](../tests/bench/results/2026-11-27-hopper-fp8/README.md).

Two executors run every kernel in CI: the host execution of the sources (`kernels/simt_host`, with races, proxies and
uninitialised memory checked) and the interpreter of the PTX that nvcc makes (`kernels/ptx_host`). They share no code. The second earns its
say on kernels of other projects that hardware has proved; a single edit of theirs or ours must be noticed.

"""

STAGES = {"gemm": "kernels aligned ops", "gemm_fp8": "kernels aligned ops", "attention": "kernels aligned cudnn ops"}
TOGETHER = {"adamw", "cross_entropy", "grad_norm", "norm", "rope", "glu"}  # edited in one run
PARTS = {  # of an op's kernels, edited by themselves
    "sm90": "Hopper's kernel", "backward_sm90": "Hopper's backward kernel", "blocks": "forward products in blocks",
    "weights": "weights' gradients in blocks", "tensor": "one scale a tensor",
}
SERVES = {
    "gemm": "the fastest of ours, cuBLASLt's and `mma.sync`'s, measured by shape on the GPU (`kernel_choices.json`)",
    "gemm_fp8": "the faster of ours and cuBLASLt's (`kernel_choices.json`)",
    "attention": "the faster of ours and cuDNN's, measured for each pass on the GPU (`kernel_choices.json`)",
}
SUITES = {
    "adamw": ["AdamW"], "attention": ["Attention", "AttentionGpu", "AttentionGradient", "AttentionCached", "AttentionHopper",
                  "AttentionHopperGradient"],
    "cross_entropy": ["CrossEntropy"], "elementwise": ["Elementwise"], "embedding": ["Embedding"], "gelu": ["Gelu"],
    "glu": ["Glu"],
    "gemm": ["GemmOp", "GemmEpilogueOp", "GemmRows"], "gemm_fp8": ["GemmQuantizedGpu", "GemmQuantizedSplit", "GemmEpilogueQuantizedGpu"],
    "grouped_gemm_fp8": ["GroupedGemmQuantizedGpu"], "quantize": ["QuantizeOp", "QuantizeSegmentsTest"], "grad_norm": ["GradNorm"], "norm": ["Norm"],
    "projection_norm": ["ProjectionNorm"], "rope": ["Rope"], "shards": ["Shards"],
}


def newest():
    return sorted((ROOT / "tests/bench/results").glob("*-second-executor"))[-1]


def recorded(name, pattern):
    """{first group: second} of the lines of that file in all records, the newest last."""
    found = {}
    for file in sorted((ROOT / "tests/bench/results").glob(f"*/{name}")):
        found.update(re.findall(pattern, file.read_text(), re.M))
    return found


def foreign_rows(folder, found):
    text = (folder / "foreign.txt").read_text()
    rows = []
    for name, key in (("DeepGEMM bf16", "deep_gemm"), ("DeepGEMM fp8", "deep_gemm"), ("FA2 D 64", "flash_attention_2"),
                      ("FA3 D 64", "flash_attention_3"), ("FA3 D 128", "flash_attention_3")):
        cases = re.findall(rf"^{name}.*error (\S+) of the largest, bound (\S+): (right|WRONG)", text, re.M)
        good = sum(verdict == "right" for _, _, verdict in cases)
        worst = max((float(error) for error, _, _ in cases), default=0)
        rows.append((name, f"{good} of {len(cases)} cases beside float64, error at most {worst:.1e}", found.get(key, "")))
    for name, words in (("CUTLASS sm_90 GEMM bf16", "bf16"), ("CUTLASS sm_90 GEMM fp8", r"e[45]m[32]")):
        good = len(re.findall(rf"\[ +OK \] SM90_Device_Gemm_{words}", text))
        bad = len(re.findall(rf"\[ +FAILED +\] SM90_Device_Gemm_{words}\S* \(", text))
        rows.append((name, f"{good} of {good + bad} of its own unit tests", found.get("cutlass", "")))
    return rows


def our_rows(found):
    suites = recorded("kernels.txt", r"^  (\w+): (\d+ of \d+)$")
    loops = collections.defaultdict(list)
    table = json.loads((ROOT / "tests/golden/sass_sm90a.json").read_text())
    for name, file in table["files"].items():
        for kernel, loop in file["main_loops"].items():
            wgmma = "_sm90" in name  # whose usual loop is the shortest, without a mask
            of = max((op for op in SUITES if name.startswith(op)), key=len, default="")
            loops[of + (", wgmma" if wgmma else "")].append((min if wgmma else max)(loop["instructions"]))
    rows = []
    for op, names in SUITES.items():
        equal = sum(int(suites[name].split()[0]) for name in names)
        total = sum(int(suites[name].split()[2]) for name in names)
        counts = loops.get(op, [])
        instructions = f"{min(counts)} to {max(counts)}" if counts else ""
        wgmma = loops.get(f"{op}, wgmma")
        if wgmma:
            mma = f", {instructions} (mma.sync)" if instructions else ""
            instructions = f"{min(wgmma)} to {max(wgmma)} (wgmma){mma}"
        edits = found["other_ops"] + ", these six together" if op in TOGETHER else found.get(op, "")
        for part, words in PARTS.items():
            if f"{op}_{part}" in found:
                edits += f"{', ' if edits else ''}{found[f'{op}_{part}']} of {words}"
        ring = f"`tests/protocols/{op}_ring.pml`, exhaustively" if (ROOT / f"tests/protocols/{op}_ring.pml").exists() else ""
        rows.append((op, f"{total} tests, {equal} with equal bits", edits, ring, instructions,
                     SERVES.get(op, "ours alone"), f"`gpu_check.sh {STAGES.get(op, 'kernels ops')}`"))
    return rows


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def account():
    """Published times beside the account of cycles, and ours beside theirs."""
    found = cycle_account.main_loops()
    cases = cycle_account.published_cases(found)
    errors = cycle_account.left_out_errors(cases)
    constants = cycle_account.fit(cases)
    groups = {"DeepGEMM fp8, 64 to 128 rows (H800)": lambda case: case.published < 700 and "GEMM" in case.name,
              "DeepGEMM fp8, more rows (H800)": lambda case: case.published >= 700,
              "FlashAttention-3 forward, D 128 (H100)": lambda case: case.name.startswith("FlashAttention-3 ["),
              "FlashAttention-3 backward, D 64 (H100)": lambda case: "backward" in case.name and case.name.endswith(" 64]"),
              "FlashAttention-3 backward, D 128 (H100)": lambda case: "backward" in case.name and case.name.endswith(" 128]")}
    rows = []
    for name, belongs in groups.items():
        chosen = [(case, error) for case, error in zip(cases, errors) if belongs(case)]
        rows.append((name, str(len(chosen)), f"{min(case.published for case, _ in chosen):.0f} to {max(case.published for case, _ in chosen):.0f}",
                     f"{100 * cycle_account.mean_absolute([error for _, error in chosen]):.0f} %",
                     f"{100 * min(error for _, error in chosen):+.0f} to {100 * max(error for _, error in chosen):+.0f} %"))
    rows.append(("all", str(len(cases)), "", f"{100 * cycle_account.mean_absolute(errors):.0f} %", ""))
    checked = [(case.name, f"{case.published:.0f}", f"{case.tflops(constants):.0f}", f"{100 * case.error(constants):+.0f} %")
               for case in cycle_account.checked_cases(found)]
    return (table(("kernels that were measured", "cases", "published TFLOP/s", "mean error of the account", "from, to"), rows)
            + "\n" + table(("not fitted to", "TFLOP/s measured", "by the account", "error"), checked)
            + "\n" + table(("ours, H100", "TFLOP/s by the account", "theirs", "by the account", "ours / theirs"), cycle_account.our_rows(found, constants)))


def page():
    folder = newest()
    found = recorded("mutations.txt", r"^(\w+): (\d+ of \d+) found")
    versions = [line[2:] for line in (folder / "foreign.txt").read_text().splitlines() if line.startswith("# ")]
    text = HEAD + "## Kernels that hardware has proved, on the interpreter\n\n"
    text += table(("kernels", "results", "single edits of their PTX found"), foreign_rows(folder, found))
    text += "\n" + "; ".join(dict.fromkeys(versions)) + f". From `{folder.relative_to(ROOT)}`.\n\n## Ours\n\n"
    text += table(("op", "on both executors", "single edits of the PTX found", "ring proved", "instructions of a main loop (sm_90a)",
                   "what serves by default", "confirmed or refuted by"), our_rows(found))
    text += """
*Equal bits* are the tests whose every tensor has the same bits on both executors; tests behind an exponential differ in last
digits (CUDA's is a few instructions, the host's its own) and are held by their bounds. All tests also pass on the PTX as it is
shipped, contracted. No main loop has a fence of the whole GPU or touches local memory, no kernel wider than one splits its
stores (`scripts/check_sass.py`).

*Sums of tensor cores* (`TRIREME_PTX_SUMS=tensor-core`) follow MMA-Sim bit for bit in nine forms of `wgmma` and `mma.sync`; layouts follow the
tables of CuTe's host code. The ops' tests pass with these sums too.

*Whole runs*: `train_ptx` is the program with the interpreter for a GPU. The end-to-end test of the GPU backend (four families, fp32 and
bf16, recorded steps, resuming, checkpoints, equal bits, evaluation) passes on it as on the host execution; nightly, and a short run in CI.

## How fast, by an account of cycles

"""
    text += account() + """
From machine code alone (`scripts/cycle_account.py`): tensor cycles, issue slots and, backward, shared memory of a main loop, whole waves of
tiles, bytes, with five constants that are fitted to the published times; a case's error is that of constants fitted to all others.
Not fitted to: calls through autograd (D 128, 48 heads), D 256 and ours on an H200; whence each comes stands in the script. The
account knows nothing of epilogues, bank conflicts, turns or power: it says what a main loop allows, and short sequences take longer.
cuBLAS is published with 795 TFLOP/s at 8192^3.
"""
    return text


def main():
    text = page()
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text() != text:
            sys.exit(f"{PAGE.relative_to(ROOT)} is not what the records say: run scripts/gpu_evidence.py")
        return
    PAGE.write_text(text)


main()
