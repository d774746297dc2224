#!/usr/bin/env python3
"""What ptxas made of the kernels, checked like a result: which accesses and fences there are, and where.

    scripts/check_sass.py [--objects build/.../cuda] [--write]
    scripts/check_sass.py --rules OBJECT...

Reads the machine code for Hopper (sm_90a) in the objects of the CUDA build. Rules, for what no test of results sees:

  whole stores   a kernel made for several elements at once (a template's width above 1) stores none of fewer than 4 bytes
  fences         no fence of the whole GPU in a loop around tensor-core products
  local memory   none in a kernel with such products: what spills costs more than it saves, and nvcc once took an address of
                 global memory for a local one
  registers      behind a warp that gives registers back, no instruction names one above those that it keeps

and the table tests/golden/sass_sm90a.json: of each kernel with tensor-core products the instructions of its main loop and
how many loads of global memory are under way before one of them is used, and of each file the stores of less than 4
bytes. A change there is a fault until --write has recorded it. The table is of one release of ptxas; with another its
counts are left out and only the rules hold. Ends with 77 where there is no cuobjdump (scripts/setup.sh --cuda brings
it), with 1 where anything is found.
"""

import argparse
import concurrent.futures
import functools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests/golden/sass_sm90a.json"
PRODUCT = re.compile(r"\b(HGMMA|HMMA|QGMMA|IMMA|DMMA)\b")
FENCE = re.compile(r"\bMEMBAR\.\S*(GPU|SYS)")
SPECIAL = re.compile(r"\bMUFU\b")
LOCAL = re.compile(r"\b(LDL|STL)\b")
SMALL_STORE = re.compile(r"\bST[GS]?\.\S*(U8|S8|U16|S16)\b")


class Kernel:
    def __init__(self, text):
        self.symbol = text.split("\n", 1)[0].strip()
        self.name = short_name(self.symbol)
        found = re.findall(r"/\*([0-9a-f]{4,})\*/\s+([^;]*);", text)
        self.code = [(int(address, 16), instruction.strip()) for address, instruction in found]
        self.at = {address: i for i, (address, _) in enumerate(self.code)}

    def target(self, i):
        """Of a branch: the index of the instruction that it goes to."""
        found = re.search(r"\bBRA\S*\s.*?(0x[0-9a-f]+)", self.code[i][1])
        return self.at.get(int(found.group(1), 16)) if found else None

    def leaves(self, i):
        """The next instruction never follows this one."""
        instruction = self.code[i][1]
        return bool(re.match(r"(BRA|EXIT|RET)\b", instruction)) and not re.search(r"BRA\.(U\.ANY|DIV)|BRA !?U?P", instruction)

    def loops(self):
        """[first, last] of each: a branch backwards closes it."""
        spans = []
        for i in range(len(self.code)):
            to = self.target(i)
            if to is not None and to < i:
                spans.append((to, i))
        return spans

    def main_loops(self):
        """Around each product the smallest loop."""
        spans = self.loops()
        found = set()
        for i, (_, instruction) in enumerate(self.code):
            around = [span for span in spans if span[0] <= i <= span[1]]
            if PRODUCT.search(instruction) and around:
                found.add(min(around, key=lambda span: span[1] - span[0]))
        return sorted(found)

    def shortest_way(self, start, end):
        """The fewest instructions from one to another behind it, both among them; none where no way leads there."""
        before, waiting = {start: None}, [start]
        for i in waiting:
            if i == end:
                break
            to = self.target(i)
            for following in ([] if self.leaves(i) else [i + 1]) + ([] if to is None else [to]):
                if start < following <= end and following not in before:
                    before[following] = i
                    waiting.append(following)
        way, i = [], end if end in before else None
        while i is not None:
            way.append(i)
            i = before[i]
        return way[::-1]

    def shortest_turn(self, span):
        """The fewest instructions of a turn of a loop that passes all its products, as a tile without a mask does; the whole
        loop where no way passes them all."""
        turn = [span[0]]
        for stop in [i for i in range(span[0], span[1] + 1) if PRODUCT.search(self.code[i][1])] + [span[1]]:
            way = self.shortest_way(turn[-1], stop)
            if not way:
                return list(range(span[0], span[1] + 1))
            turn += way[1:]
        return turn

    def shared_cycles(self, turn):
        """Cycles of shared memory, at 128 bytes each, that a warpgroup's instructions take: operands of wgmma that stand
        there, stores without conflicts, loads of what lanes share (numbers of a row or column), and shuffles, which take
        the same way."""
        cycles = 0
        for i in turn:
            instruction = self.code[i][1]
            product = re.search(r"\b[HQ]GMMA\.64x(\d+)x\S+ R\d+, (R\d+, )?", instruction)
            store = re.search(r"\bSTSM?\b(?:\.\w+)*?(?:\.(128|64|4|2))?\s", instruction)
            if product:
                cycles += int(product.group(1)) // 4 + (0 if product.group(2) else 16)
            elif store:
                cycles += 4 * {"128": 4, "4": 4, "64": 2, "2": 2, None: 1}[store.group(1)]
            elif re.search(r"\b(LDSM?|SHFL)\b", instruction):
                cycles += 4
        return cycles

    def count(self, pattern, span=None):
        first, last = span or (0, len(self.code) - 1)
        return sum(1 for _, instruction in self.code[first : last + 1] if pattern.search(instruction))

    def loads_under_way(self):
        """The most loads of global memory that are asked for before an instruction names what one of them brings."""
        most, coming = 0, []
        for _, instruction in self.code:
            named = {int(r) for r in re.findall(r"\bR(\d+)\b", instruction)}
            load = re.search(r"\bLDG\.(\S*)\s+R(\d+)", instruction)
            if load:
                words = {"64": 2, "128": 4}.get(next((p for p in load.group(1).split(".") if p in ("64", "128")), ""), 1)
                brought = set(range(int(load.group(2)), int(load.group(2)) + words))
                named -= brought
            if any(named & registers for registers in coming):
                coming = []
            if load:
                coming.append(brought)
                most = max(most, len(coming))
        return most

    def registers_kept(self):
        """(kept, highest used) behind the instruction that gives the others back; None where there is none."""
        for start, (_, instruction) in enumerate(self.code):
            found = re.search(r"USETMAXREG\.DEALLOC\S*\s+(0x[0-9a-f]+|\d+)", instruction)
            if found:
                return int(found.group(1), 0), self.highest_register(start)
        return None

    def highest_register(self, start):
        seen, waiting, highest = set(), [start], 0
        while waiting:
            i = waiting.pop()
            while i < len(self.code) and i not in seen:
                seen.add(i)
                instruction = self.code[i][1]
                highest = max([highest] + [int(r) for r in re.findall(r"\bR(\d+)\b", instruction)])
                to = self.target(i)
                if to is not None:
                    waiting.append(to)
                if self.leaves(i):
                    break
                i += 1
        return highest


def short_name(symbol):
    shown = subprocess.run(["c++filt", "-p", symbol], capture_output=True, text=True).stdout.strip() or symbol
    shown = re.sub(r"_GLOBAL__N__[0-9a-f]+_\d+_\w+?_cu_[0-9a-f]+::", "", shown)
    return shown.replace("trireme::cuda::", "").replace("(anonymous namespace)::", "")


def width_of(kernel):
    """The elements that a thread takes at once: a small number among its template's own arguments, else 1."""
    own = re.search(r"<(.*)>", kernel.name)
    own = own.group(1) if own else ""
    while "<" in own:
        own, changed = re.subn(r"<[^<>]*>", "", own)
        if not changed:
            break
    widths = [int(a) for a in (a.strip() for a in own.split(",")) if a.isdigit() and int(a) in (2, 4, 8)]
    return max(widths, default=1)


def kernels_of(cuobjdump, file):
    done = subprocess.run([cuobjdump, "-sass", "-arch", "sm_90a", str(file)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"check_sass: {file}: {done.stderr.strip()}")
    return [Kernel(text) for text in done.stdout.split("Function : ")[1:]]


def faults_of(kernel):
    """Sentences: what a rule does not allow."""
    faults = []
    if width_of(kernel) > 1 and kernel.count(SMALL_STORE) > 0:
        faults.append(f"{kernel.count(SMALL_STORE)} stores of less than 4 bytes in a kernel of width {width_of(kernel)}")
    spans = kernel.main_loops()
    for span in spans:
        if kernel.count(FENCE, span):
            faults.append(f"{kernel.count(FENCE, span)} fences of the whole GPU in a main loop")
        if kernel.count(LOCAL, span):
            faults.append(f"{kernel.count(LOCAL, span)} accesses of local memory in a main loop")
    outside = kernel.count(LOCAL) - sum(kernel.count(LOCAL, span) for span in spans)
    if spans and outside:
        faults.append(f"{outside} accesses of local memory outside of its main loops")
    kept = kernel.registers_kept()
    if kept and kept[1] >= kept[0]:
        faults.append(f"R{kept[1]} is named behind the instruction that keeps {kept[0]} registers")
    return faults


def release_of(cuobjdump, file):
    done = subprocess.run([cuobjdump, "-elf", "-arch", "sm_90a", str(file)], capture_output=True, text=True)
    found = re.search(r"Cuda compilation tools, release [^\n]*V([0-9.]+)", done.stdout)
    return found.group(1) if found else "unknown"


def facts_of_file(cuobjdump, file):
    facts, faults = {"small_stores": 0, "main_loops": {}}, []
    for kernel in kernels_of(cuobjdump, file):
        faults += [f"{file.name}: {kernel.name}: {fault}" for fault in faults_of(kernel)]
        facts["small_stores"] += kernel.count(SMALL_STORE)
        loops = [last - first + 1 for first, last in kernel.main_loops()]
        if loops:
            facts["main_loops"][kernel.name] = {"instructions": loops, "loads_under_way": kernel.loads_under_way()}
    return facts, faults


def facts_of(files, cuobjdump):
    with concurrent.futures.ProcessPoolExecutor() as processes:
        found = list(processes.map(functools.partial(facts_of_file, cuobjdump), files))
    facts = {file.name.removesuffix(".o"): of_file for file, (of_file, _) in zip(files, found)}
    return facts, [fault for _, faults in found for fault in faults]


def scale_of(kernel):
    """A line for each main loop: instructions, products, instructions a product, special functions, fences, accesses of
    local memory, loads under way, instructions of a turn without a mask and its cycles of shared memory."""
    name = re.sub(r"\(.*", "", re.sub(r"<.*", "", kernel.name)).strip()
    for span in kernel.main_loops():
        length, products, turn = span[1] - span[0] + 1, kernel.count(PRODUCT, span), kernel.shortest_turn(span)
        yield (name, length, products, round(length / products, 1), kernel.count(SPECIAL, span), kernel.count(FENCE, span), kernel.count(LOCAL, span),
               kernel.count(LOCAL) - kernel.count(LOCAL, span), kernel.loads_under_way(), len(turn), kernel.shared_cycles(turn))


def print_scale(files, cuobjdump):
    print("| file | kernel | instructions | products | instructions a product | special functions | fences | local inside | outside | loads under way | shortest turn | shared memory |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    rows = dict.fromkeys((file.name.removesuffix(".o"), *row) for file in files for kernel in kernels_of(cuobjdump, file) for row in scale_of(kernel))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")


def find_cuobjdump(given):
    near = sorted(ROOT.glob("build/cuda/lib/python3*/site-packages/nvidia/cu13/bin/cuobjdump"))
    return given or shutil.which("cuobjdump") or (str(near[0]) if near else "")


def differences(recorded, found):
    texts = []
    for file in sorted(set(recorded) | set(found)):
        old, new = recorded.get(file), found.get(file)
        if old is None or new is None:
            texts.append(f"{file}: {'not recorded' if old is None else 'is recorded and not there'}")
            continue
        if old["small_stores"] != new["small_stores"]:
            texts.append(f"{file}: {new['small_stores']} stores of less than 4 bytes, {old['small_stores']} recorded")
        for name in sorted(set(old["main_loops"]) | set(new["main_loops"])):
            was, now = old["main_loops"].get(name), new["main_loops"].get(name)
            if was != now:
                texts.append(f"{file}: {name}: main loops {now}, recorded {was}")
    return texts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", default=str(ROOT / "build/cpu-release/cuda"))
    parser.add_argument("--cuobjdump", default="")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--write", action="store_true", help="record what is found")
    parser.add_argument("--find", action="store_true", help="print which cuobjdump it is")
    parser.add_argument("--rules", nargs="*", default=None, metavar="OBJECT", help="the rules alone, of these objects")
    parser.add_argument("--scale", nargs="*", default=None, metavar="OBJECT",
                        help="a table of main loops of these objects, for instance of other projects; no rules")
    args = parser.parse_args()
    cuobjdump = find_cuobjdump(args.cuobjdump)
    if not cuobjdump:
        print("check_sass: no cuobjdump (scripts/setup.sh --cuda)")
        sys.exit(77)
    if args.find:
        print(cuobjdump)
        return
    if args.scale is not None:
        print_scale([Path(o) for o in args.scale], cuobjdump)
        return
    files = [Path(o) for o in args.rules] if args.rules is not None else sorted(Path(args.objects).glob("*.cu.o"))
    if not files:
        sys.exit(f"check_sass: {args.objects}: no objects of the CUDA build (target train_cuda)")
    facts, faults = facts_of(files, cuobjdump)
    if args.rules is None:
        release = release_of(cuobjdump, files[0])
        if args.write:
            args.table.write_text(json.dumps({"ptxas": release, "files": facts}, indent=1, sort_keys=True) + "\n")
            print(f"check_sass: {args.table}: {len(files)} files, ptxas {release}")
        recorded = json.loads(args.table.read_text())
        if recorded["ptxas"] == release:
            faults += differences(recorded["files"], facts)
        else:
            print(f"check_sass: the table is of ptxas {recorded['ptxas']}, this is {release}: rules alone")
    for fault in faults:
        print(f"check_sass: {fault}")
    kernels = sum(len(of_file["main_loops"]) for of_file in facts.values())
    print(f"check_sass: {len(files)} files, {kernels} kernels with main loops, {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
