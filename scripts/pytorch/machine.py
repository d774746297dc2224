"""What a measurement must say of the machine and the programs that were measured."""

import datetime
import os
import pathlib
import platform
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# Of the flags in /proc/cpuinfo, those that decide which kernels run.
INSTRUCTION_SETS = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")


def cpu_info():
    fields = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = fields.get("flags", "").split()
    return {
        "model": fields.get("model name", platform.machine()),
        "family_model_stepping": [fields.get(key, "?") for key in ("cpu family", "model",
                                                                   "stepping")],
        "instruction_sets": [flag for flag in INSTRUCTION_SETS if flag in flags],
    }


def has_bf16():
    return bool({"avx512_bf16", "amx_bf16"} & set(cpu_info()["instruction_sets"]))


def usable_cores():
    """Cores, not their hardware threads, as far as this process may use them."""
    allowed = os.sched_getaffinity(0)
    listing = subprocess.run(["lscpu", "-p=CPU,CORE,SOCKET"], capture_output=True, text=True)
    cores = {tuple(line.split(",")[1:]) for line in listing.stdout.splitlines()
             if line and not line.startswith("#") and int(line.split(",")[0]) in allowed}
    return len(cores) or len(allowed)


def commit():
    def git(*arguments):
        result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return result.stdout.strip() if result.returncode == 0 else ""

    changed = git("status", "--porcelain", "--untracked-files=no", "src", "kernels")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + ("+changes" if changed else "")


def describe(train, threads):
    """Everything that belongs beside a figure; imports torch only for its version."""
    import importlib.metadata as packages

    version = subprocess.run([train, "--version"], capture_output=True, text=True).stdout
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "cpu": cpu_info(),
        "usable_cores": usable_cores(),
        "threads": threads,
        "memory_bytes": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": packages.version("torch"),
        "transformers": packages.version("transformers"),
        "train_version": [" ".join(line.split()) for line in version.splitlines()],
    }


def describe_markdown(machine):
    cpu = machine["cpu"]
    return "\n".join([
        "| | |", "|---|---|",
        f"| date | {machine['date']} |",
        f"| commit | {machine['commit']} |",
        f"| CPU | {cpu['model']} (family {cpu['family_model_stepping'][0]}, model "
        f"{cpu['family_model_stepping'][1]}): {', '.join(cpu['instruction_sets'])} |",
        f"| cores usable, used | {machine['usable_cores']}, {machine['threads']} |",
        f"| memory | {machine['memory_bytes'] / 2**30:.1f} GiB |",
        f"| train | {'; '.join(machine['train_version'])} |",
        f"| PyTorch, transformers | {machine['torch']}, {machine['transformers']} "
        f"(Python {machine['python']}) |",
    ])
