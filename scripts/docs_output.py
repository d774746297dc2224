#!/usr/bin/env python3
"""Makes the output that the pages show: the blocks between `<!-- output: NAME -->` and `<!-- end -->`.

usage: scripts/docs_output.py TRAIN [--check]

Runs what each block shows with the binary TRAIN and writes the blocks anew, long ones shortened by lines of dots.
--check writes nothing and ends with 1 where a block has a line whose form this version no longer prints: numbers, with
their units, and blanks do not count. What runs is the README's first config on data/sample.txt; a minute on two cores.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- output: (\w+) -->\n)(.*?)(\n<!-- end -->)", re.DOTALL)


def run(command, folder, stream="stderr"):
    result = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace", check=False)
    if result.returncode != 0:
        sys.exit(f"docs_output: {' '.join(command)} ended with {result.returncode}\n{result.stderr}")
    return getattr(result, stream)


def first_config():
    """The JSON of the README, which is what people run."""
    text = (ROOT / "README.md").read_text()
    block = text[text.index('      "run": {"directory": "runs/first"'):]
    block = "{" + block[:block.index("\n    }\n")] + "}"
    return json.loads(re.sub(r"//[^\n]*", "", block))


def shortened(lines):
    """Of steps in a row the first one, of other lines of one form the first two, and dots."""
    out, count, last = [], 0, None
    for line in lines:
        shape = form(line)
        count = count + 1 if shape == last else 1
        last = shape
        kept = 1 if line.startswith("step") else 2
        if count <= kept:
            out.append(line)
        elif count == kept + 1:
            out.append("...")
    return out


def form(line):
    """Without what depends on the machine and its speed: numbers, bars, the slowest operations, hosts and CPUs."""
    line = re.sub(r"\s+#+$", "", line.strip())
    line = re.sub(r"(most to gain, of the step: ).*", r"\1operations", line)
    line = re.sub(r"AVX\w*|Zen \d", "ISA", re.sub(r"^cpu .*", "cpu", line))
    line = re.sub(r"[0-9][0-9.,:e+-]*\s?(k|M|B|KiB|MiB|GiB|ms|s|m[0-9]+s|h[0-9]+m|%)?(?![A-Za-z])", "#", line)
    line = " ".join(re.sub(r"#+", "#", line).split())
    line = re.sub(r"^[a-z_]+((?: #)+)$", r"row\1", line)  # of a table: one that took no time is left out
    return re.sub(r"^# \S+ # # CPU", "# host # # CPU", line)


def outputs(train, folder):
    """{name: lines} of everything that is shown."""
    scripts = ROOT / "scripts"
    environment = ["env", f"TRIREME_TRAIN={train}", f"PATH={pathlib.Path(train).parent}:/usr/local/bin:/usr/bin:/bin"]
    run([*environment, str(ROOT / "data/text.sh"), "--output", "runs/data", "--vocab-size", "1024",
         str(ROOT / "data/sample.txt")], folder)
    config = first_config()
    (folder / "runs/first.json").write_text(json.dumps(config))
    found = {}
    lines = run([*environment, str(scripts / "run.sh"), "-n", "2", "runs/first.json"], folder).splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("llama with"))
    found["first_run"] = shortened([line for line in lines[begin:] if line.strip()])
    lines = run([train, "benchmark", "runs/first.json", "--steps", "20"], folder, "stdout").splitlines()
    found["benchmark"] = lines
    (folder / "prompts.txt").write_text("And the LORD said\nIn the beginning\n")
    lines = run([train, "generate", "--checkpoint", "runs/first", "--prompt-file", "prompts.txt", "--num-samples", "24",
                 "--max-new-tokens", "32"], folder).splitlines()
    found["generation"] = [line for line in lines if line.startswith("generated")]
    return found


def check(page, name, shown, printed):
    """Every line that is shown has, in order, a line of its form."""
    forms = [form(line) for line in printed]
    at, faults = 0, []
    for line in shown.splitlines():
        wanted = form(line.strip())
        if not wanted or wanted.strip(". ") == "":
            continue
        if wanted in forms[at:]:
            at += forms[at:].index(wanted)
        elif wanted not in forms:
            faults.append(f"{page.relative_to(ROOT)}: {name}: no longer printed: {line.strip()}")
    return faults


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--check"]):
        sys.exit(__doc__)
    train = str(pathlib.Path(sys.argv[1]).resolve())
    checks = sys.argv[2:] == ["--check"]
    with tempfile.TemporaryDirectory() as temporary:
        found = outputs(train, pathlib.Path(temporary))
    faults, blocks = [], 0
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            blocks += 1
            if match.group(2) not in found:
                faults.append(f"{page.relative_to(ROOT)}: an output that nothing makes: {match.group(2)}")
            else:
                faults += check(page, match.group(2), match.group(3), found[match.group(2)])
        if not checks:
            page.write_text(BLOCK.sub(
                lambda m: m.group(1) + "\n".join(("    " + line).rstrip() for line in found[m.group(2)]) + m.group(4), text))
    if checks and faults:
        print("\n".join(faults) + f"\ndocs_output: run scripts/docs_output.py {sys.argv[1]}")
        sys.exit(1)
    print(f"{blocks} blocks in {len(PAGES)} pages {'have the form that is printed' if checks else 'made anew'}")


if __name__ == "__main__":
    main()
