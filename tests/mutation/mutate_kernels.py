#!/usr/bin/env python3
"""Single edits of the CUDA kernels, each of which the tests of the op must find.

    tests/mutation/mutate_kernels.py --build build/simt [--op gelu --op norm] [--count 20] [--seed 1] [--executor ptx]

An operator is exchanged, a constant changed, a barrier, a wait or a statement taken out, in a scratch
copy of one file; the file is compiled as the checked host execution compiles it (cmake/gpu.cmake),
linked with everything else of kernels_simt_tests as it stands in the build folder, and the op's tests
are run on unaligned and on aligned tensors. What no test finds is a survivor: a missing test, or an
edit that changes nothing (a tuning constant, a bound that another one covers). Fails where more
survive than --allowed. With `--executor simt --executor ptx` each edit is also compiled by nvcc and its PTX interpreted
(kernels_ptx_tests), and what only one of the two finds is counted.

--planted: not any edits, but those of planted_faults.py, of which none may survive. --check, which needs no build, only says
whether the code that each of these changes still stands.
"""

import argparse
import os
import pathlib
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time

from planted_faults import PLANTED

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPERATORS = [
    (" + ", " - "), (" - ", " + "), (" * ", " + "), (" / ", " * "), (" % ", " / "),
    (" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "),
    (" == ", " != "), (" != ", " == "), (" && ", " || "), (" || ", " && "),
    (" += ", " = "), ("++", "--"), ("fmaxf(", "fminf("),
]
REMOVED_CALLS = re.compile(
    r"\b(__syncthreads|__syncwarp|(?:ptx::)?(?:cp_async_wait|cp_async_commit|barrier_sync|barrier_arrive|"
    r"fence_\w+|mbarrier_wait|mbarrier_arrive|wgmma_fence|wgmma_commit|wgmma_wait|bulk_wait\w*|bulk_commit))"
    r"(<[^;<>]*>)?\([^;]*\);")
STATEMENT = re.compile(r"^\s*[\w.\[\]>*()-]+(\[[^\]]*\])? [-+*/]?= [^;{]*;$")
SKIPPED = re.compile(r"^\s*(//|#|static_assert|using |namespace |template|asm|\"|\}|const \w+Kernels|struct |class )|\"")


def edits_of_line(line):
    """(description, new line) for each edit of a line."""
    if not line.strip() or SKIPPED.search(line):
        return
    code = line.split("//")[0]
    for old, new in OPERATORS:
        for match in re.finditer(re.escape(old), code):
            yield f"{old.strip()} -> {new.strip()}", line[: match.start()] + new + line[match.end():]
    for match in re.finditer(r"(?<![\w.])(\d+)(?![\w.])", code):
        changed = str(int(match[1]) + 1)
        yield f"{match[1]} -> {changed}", line[: match.start()] + changed + line[match.end():]
    for match in re.finditer(r"(?<![\w.])(\d+\.\d+)F?f", code):
        yield f"{match[1]} -> {float(match[1]) + 0.5}", (
            line[: match.start()] + str(float(match[1]) + 0.5) + "f" + line[match.end():])
    for match in REMOVED_CALLS.finditer(code):
        yield f"without {match[1]}", line[: match.start()] + ";" + line[match.end():]
    match = re.search(r"\bif \((?!constexpr)(.*)\)( \{| return| continue|$)", code)
    if match and match[1].count("(") == match[1].count(")"):
        yield "condition negated", line[: match.start(1)] + f"!({match[1]})" + line[match.end(1):]
    if STATEMENT.match(code.rstrip()):
        yield "statement removed", re.match(r"\s*", line)[0] + ";"


def edits_of(path):
    lines = path.read_text().split("\n")
    for number, line in enumerate(lines):
        for what, new in edits_of_line(line):
            yield number, what, new


# The target of an executor's tests, and how the command that compiles a kernel names output and source.
EXECUTORS = {
    "simt": ("kernels_simt_tests", r"-o (?P<output>\S*trireme_simt_checked_kernels\.dir/(?P<source>\S+\.cu)\.o)"),
    "ptx": ("kernels_ptx_tests", r"(?P<output>\S+/ptx/\S+\.cu\.o) \S*?(?P<source>kernels/\S+\.cu) -ccbin"),
}


class Build:
    def __init__(self, folder, scratch, executor):
        self.folder, self.scratch = folder, scratch
        self.target, pattern = EXECUTORS[executor]
        commands = subprocess.run(["ninja", "-C", folder, "-t", "commands", self.target], check=True,
                                  capture_output=True, text=True).stdout.splitlines()
        self.link_command = commands[-1]
        self.compile = {}
        for command in commands:
            match = re.search(pattern, command)
            if match:
                self.compile[match["source"]] = (match["output"], command)

    def run(self, command, **arguments):
        return subprocess.run(command, shell=True, cwd=self.folder, capture_output=True, text=True, **arguments)

    def users_of(self, header):
        """The .cu files that include the header, by their dependency files."""
        for source, (output, _) in self.compile.items():
            inside = output.removeprefix(f"{self.folder}/")
            deps = subprocess.run(["ninja", "-C", self.folder, "-t", "deps", inside], capture_output=True,
                                  text=True).stdout
            if f"/{header}\n" in deps + "\n":
                yield source

    def link(self, path, text):
        """Compiles what an edited file changes and links the tests; None where it does not compile."""
        copy = self.scratch / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)
        link = self.link_command
        try:
            for source in [path] if path.endswith(".cu") else list(self.users_of(path)):
                output, command = self.compile[source]
                target = self.scratch / (self.target + source.replace("/", "_") + ".o")
                command = command.replace(output, str(target))
                if source == path:
                    command = command.replace(str(ROOT / source), str(copy))
                command = command.replace(" -I", f" -I{self.scratch} -I", 1)
                if self.run(command).returncode != 0:
                    return None
                link = link.replace(output, str(target)).replace(output.removeprefix(f"{self.folder}/"), str(target))
        finally:
            copy.unlink()
        program = self.scratch / self.target
        link = link.replace(f"-o {self.target}", f"-o {program}").replace(f"-o tests/kernels/{self.target}", f"-o {program}")
        result = self.run(link)
        if result.returncode != 0:
            sys.exit(result.stderr[-2000:])
        return program


def filter_of(program, op):
    listed = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
    suites = [line.strip() for line in listed.splitlines() if line and not line.startswith(" ")]
    wanted = op.replace("_", "")
    return ":".join(s.split("#")[0].strip() + "*" for s in suites if wanted in s.lower()) + "-Simd*:*OpWork*:*AtLength.*"


def finds(program, tests, seconds):
    """The first line that says what is wrong; "" where all passes."""
    for aligned in ("", "1"):
        environment = dict(os.environ)
        environment.pop("TRIREME_TEST_ALIGNED", None)
        if aligned:
            environment["TRIREME_TEST_ALIGNED"] = aligned
        try:
            result = subprocess.run([program, f"--gtest_filter={tests}", "--gtest_fail_fast"], env=environment,
                                    capture_output=True, text=True, timeout=seconds, errors="replace")
        except subprocess.TimeoutExpired:
            return "hangs"
        if result.returncode != 0:
            said = re.search(r"description \"([^\"\n]*)|Failure\n(.*)", result.stdout)
            return (said[1] or said[2] if said else f"exit {result.returncode}")[:100]
    return ""


class Tests:
    """The tests of one op on one executor."""

    def __init__(self, build, op, suite=None):
        self.build = build
        source = next(s for s in sorted(build.compile) if s.startswith(f"kernels/{op}/"))
        sound = build.link(source, (ROOT / source).read_text())
        self.names = f"*{suite}*" if suite else filter_of(sound, op)
        begin = time.monotonic()
        wrong = finds(sound, self.names, 600)
        self.limit = 60 + 5 * (time.monotonic() - begin)  # beyond it an edit has made a loop endless
        if wrong:
            sys.exit(f"{op}: {build.target} fail without an edit: {wrong}")

    def find(self, name, text):
        """What is found; None where the edit does not compile."""
        program = self.build.link(name, text)
        return None if program is None else finds(program, self.names, self.limit)


def edits_of_op(op, draw):
    files = sorted(p for pattern in ("*.cu", "*.cuh") for p in (ROOT / "kernels" / op).glob(pattern))
    candidates = [(path, *edit) for path in files for edit in edits_of(path)]
    draw.shuffle(candidates)
    for path, number, what, new in candidates:
        lines = path.read_text().split("\n")
        old, lines[number] = lines[number], new
        name = str(path.relative_to(ROOT))
        yield name, f"{name}:{number + 1} {what}", old.strip(), "\n".join(lines)


def with_fault(files, what, changes):
    """The file that a planted fault is in, and its text with the fault."""
    name = next((file for file in files if changes[0][0] in (ROOT / file).read_text()), files[0])
    text = (ROOT / name).read_text()
    for old, new in changes:
        if text.count(old) != 1:
            sys.exit(f"{name}: planted fault \"{what}\": the text to change stands there {text.count(old)} times")
        text = text.replace(old, new)
    return name, text


def planted(builds, ops):
    """Those that survive."""
    survivors = []
    for op in ops:
        for suite, files, faults in PLANTED.get(op, []):
            tests = [Tests(build, op, suite) for build in builds]
            for what, changes in faults:
                name, text = with_fault(files, what, changes)
                for of_executor in tests:
                    found = of_executor.find(name, text)
                    if found is None:
                        sys.exit(f"{name}: planted fault \"{what}\" does not compile")
                    print(f"{'found   ' if found else 'SURVIVED'} {of_executor.build.target}: {what:<50} {found}", flush=True)
                    if not found:
                        survivors.append(what)
    return survivors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--op", action="append", help="a folder of kernels/; all by default")
    parser.add_argument("--executor", action="append", choices=EXECUTORS, help="simt by default; both may be named")
    parser.add_argument("--count", type=int, default=20, help="edits of each op that compile")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--allowed", type=float, default=0.25, help="the share that may survive")
    parser.add_argument("--planted", action="store_true", help="the faults of planted_faults.py")
    parser.add_argument("--check", action="store_true", help="that planted faults can be made")
    arguments = parser.parse_args()
    if arguments.check:
        faults = [with_fault(files, what, changes) for groups in PLANTED.values() for _, files, faults in groups for what, changes in faults]
        print(f"{len(faults)} planted faults")
        return 0
    if arguments.build is None:
        parser.error("--build is missing")
    draw = random.Random(arguments.seed)
    executors = arguments.executor or ["simt"]
    survivors, tried, only = [], 0, dict.fromkeys(executors, 0)
    with tempfile.TemporaryDirectory() as scratch:
        builds = [Build(arguments.build.resolve(), pathlib.Path(scratch), executor) for executor in executors]
        if arguments.planted:
            return 1 if planted(builds, arguments.op or sorted(PLANTED)) else 0
        for op in arguments.op or sorted({source.split("/")[1] for source in builds[0].compile}):
            tests, done = [Tests(build, op) for build in builds], 0
            for name, place, old, text in edits_of_op(op, draw):
                if done == arguments.count:
                    break
                found = [of_executor.find(name, text) for of_executor in tests]
                if None in found:
                    continue
                done += 1
                by = [executor for executor, what in zip(executors, found) if what]
                if len(by) == 1:
                    only[by[0]] += 1
                verdict = "SURVIVED" if not by else "found   " if len(by) == len(found) else f"by {by[0]} "
                print(f"{verdict} {place:<70} {next(filter(None, found), old)}", flush=True)
                if not by:
                    survivors.append(f"{place}: {old}")
            tried += done
    print(f"{tried} edits, {len(survivors)} survived")
    if len(executors) > 1:
        print("found by one alone: " + ", ".join(f"{executor} {count}" for executor, count in only.items()))
    for survivor in survivors:
        print(f"    {survivor}")
    return 0 if len(survivors) <= arguments.allowed * tried else 1


if __name__ == "__main__":
    sys.exit(main())
