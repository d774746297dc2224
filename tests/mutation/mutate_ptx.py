#!/usr/bin/env python3
"""Single edits of the PTX inside a program that runs on kernels/ptx_host, and whether its tests notice.

  mutate_ptx.py [--count N] [--seed S] [--kernel WORDS] PROGRAM [ARGUMENTS...]

The program runs once to learn which instructions its tests execute; then, for each of N edits drawn among these, a copy of
it with one statement changed. An edit is found where the copy fails or takes five times the processor's time: a busy machine
finds nothing. Works for any program: ours, and those of other projects (scripts/foreign_kernels.sh). Prints each edit that
survived, and a line of counts by kind. Exits 1 where fewer than two thirds are found: some edits change nothing that anybody
could see (a hint, a bound that is never reached).
"""
import argparse
import collections
import os
import random
import re
import resource
import subprocess
import sys
import tempfile

SWAPS = [("add.", "sub."), ("sub.", "add."), ("max.", "min."), ("min.", "max."), ("shl.", "shr."), ("setp.lt.", "setp.ge."),
         ("setp.ge.", "setp.lt."), ("setp.gt.", "setp.le."), ("setp.eq.", "setp.ne."), ("setp.ne.", "setp.eq."), ("and.b", "xor.b"),
         ("neg.", "abs."), ("fma.rn.", "fma.rz."), ("selp.", None)]
DELETED = ("bar.sync", "fence.proxy", "wgmma.wait_group", "mbarrier.arrive", "mbarrier.init", "cp.async.wait_group",
           "cp.async.bulk.wait_group", "barrier.cluster.wait", "st.shared", "cp.async.bulk.commit", "wgmma.commit", "bar.warp")


def edits(statement):
    """(kind, text) of each edit of a statement, no longer than it."""
    for old, new in SWAPS:
        if new and statement.startswith(old):
            yield "operation", new + statement[len(old):]
    guard = re.match(r"@(%p\d+) ([ \t]*)(.*)", statement, re.S)
    if guard:
        yield "guard", f"@!{guard[1]}{guard[2] or ' '}{guard[3]}"[: len(statement)] if guard[2] else f"@!{guard[1]}\t{guard[3]}"[: len(statement)]
    if statement.lstrip("@!%p0123456789 \t").startswith(DELETED):
        yield "left out", " " * len(statement)
    number = re.search(r"([ +])(\d*[1-8])([\];,])", statement)
    if number and not statement.startswith((".", "setmaxnreg")):
        changed = str(int(number[2]) + 1)
        if len(changed) == len(number[2]):
            yield "constant", statement[: number.start(2)] + changed + statement[number.end(2):]
    registers = list(re.finditer(r"(%(?:r|rd|f)\d+), (%(?:r|rd|f)\d+);$", statement))
    if registers and registers[0][1] != registers[0][2] and statement.startswith(("sub", "setp.l", "setp.g", "shr", "div", "rem", "st.")):
        a, b = registers[0][1], registers[0][2]
        if a.rstrip("0123456789") == b.rstrip("0123456789"):
            yield "operands", statement[: registers[0].start()] + f"{b}, {a};"


def run(command, seconds, **environment):
    """seconds: of a processor; one that waits for nothing forever is ended after an hour."""
    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))

    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=3600, check=False,
                              env={**os.environ, **environment}, preexec_fn=limit).returncode
    except subprocess.TimeoutExpired:
        return "timeout"


def seconds_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def sites(program, coverage, words):
    """Where an edit can be made: offset in the file, the statement, kind and text of the edit."""
    starts, found = {}, []
    with open(coverage) as lines:
        for line in lines:
            kernel, at, _, _ = line.split()
            if words and words not in kernel:
                continue
            if kernel not in starts:
                starts[kernel] = program.find(b".entry " + kernel.encode() + b"(")
            offset = starts[kernel] + len(".entry ") + int(at)
            statement = program[offset: program.index(b";", offset) + 1].decode()
            found += [(offset, statement, kind, text, kernel) for kind, text in edits(statement)]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kernel", default="")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    with open(options.program, "rb") as file:
        program = file.read()
    with tempfile.TemporaryDirectory() as folder:
        coverage, copy = f"{folder}/coverage", f"{folder}/program"
        if run([options.program, *options.arguments], 600, TRIREME_PTX_COVERAGE=coverage) != 0:
            sys.exit("the program fails without an edit")
        limit = 5 + round(5 * seconds_of_children())
        by_kind = collections.defaultdict(list)
        for site in sites(program, coverage, options.kernel):
            by_kind[site[2]].append(site)
        chosen, draw = [], random.Random(options.seed)
        while len(chosen) < options.count and any(by_kind.values()):
            kind = sorted(k for k in by_kind if by_kind[k])[len(chosen) % sum(1 for k in by_kind if by_kind[k])]
            chosen.append(by_kind[kind].pop(draw.randrange(len(by_kind[kind]))))
        made, noticed = collections.Counter(), collections.Counter()
        for offset, statement, kind, text, kernel in chosen:
            text = text.ljust(len(statement))
            with open(copy, "wb") as file:
                file.write(program[:offset] + text.encode() + program[offset + len(statement):])
            os.chmod(copy, 0o755)
            made[kind] += 1
            if run([copy, *options.arguments], limit) != 0:
                noticed[kind] += 1
            else:
                print(f"survived: {statement!r} -> {text.strip()!r} in {kernel[:100]}", flush=True)
    total = sum(noticed.values())
    print(f"{total} of {sum(made.values())} found; " + ", ".join(f"{kind} {noticed[kind]} of {made[kind]}" for kind in sorted(made)))
    sys.exit(0 if 3 * total >= 2 * sum(made.values()) else 1)


main()
