#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_tables.cc.

Two facts about Hugging Face `tokenizers` are measured here and kept as tables: the general category
of each character in its regular expressions (newer than PCRE2's in the distributions), and which
characters its NFC does not know (older than utf8proc's). Needs `tokenizers` and perl (character ages).
"""

import sys

if sys.argv[1:2] and sys.argv[1].startswith("-"):
    print(__doc__)
    sys.exit(0 if sys.argv[1] in ("-h", "--help") else 2)

import pathlib
import subprocess

from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
# Blocks of Unicode 16 whose letters (not marks) take part in compositions.
LATER_COMPOSITIONS = [(0x105C0, 0x105FF), (0x11380, 0x113FF), (0x16D40, 0x16D7F)]


def assigned_in(version):
    program = (f"for my $c (0..0x10FFFF) {{ next if $c >= 0xD800 && $c < 0xE000;"
               f" print qq($c\\n) if chr($c) =~ /\\p{{In={version}}}/; }}")
    return {int(line) for line in subprocess.check_output(["perl", "-e", program]).split()}


def category_of_peer():
    category = {}
    for name in CATEGORIES:
        finder = pre_tokenizers.Split(Regex(r"\p{%s}" % name), "removed", invert=True)
        for begin in range(0, len(POINTS), 4096):
            text = "".join(map(chr, POINTS[begin:begin + 4096]))
            for piece, _ in finder.pre_tokenize_str(text):
                category.update((ord(c), name) for c in piece)
    return category


def utf8_length(point):
    return len(chr(point).encode())


def stand_ins(category):
    known = assigned_in("13.0")
    stand_in = {}
    for point in sorted(known & category.keys()):
        stand_in.setdefault((category[point], utf8_length(point)), point)
    ranges = []
    for point in sorted(category.keys() - known):
        other = stand_in[(category[point], utf8_length(point))]
        if ranges and ranges[-1][1] == point - 1 and ranges[-1][2] == other:
            ranges[-1][1] = point
        else:
            ranges.append([point, point, other])
    return ranges


def inert(category):
    old = assigned_in("9.0")
    points = {c for c, name in category.items() if name[0] == "M" and c not in old} | {0x11938}
    for first, last in LATER_COMPOSITIONS:
        points |= set(range(first, last + 1))
    nfc = normalizers.NFC()
    for point in points:  # whatever is listed must not move between other marks
        text = "a\u0301" + chr(point) + "\u0323"
        assert nfc.normalize_str(text) == "\u00e1" + chr(point) + "\u0323", hex(point)
    ranges = []
    for point in sorted(points):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return ranges


def rows(ranges):
    items = ["{" + ", ".join(f"0x{value:x}" for value in row) + "}," for row in ranges]
    lines, line = [], "   "
    for item in items:
        if len(line) + 1 + len(item) > 98:
            lines.append(line)
            line = "   "
        line += " " + item
    return "\n".join(lines + [line])


def main():
    category = category_of_peer()
    out = pathlib.Path(__file__).resolve().parent.parent / "src/tokenizer/unicode_tables.cc"
    out.write_text(f"""// Made by scripts/make_unicode_tables.py; do not edit.
#include "tokenizer/unicode_tables.h"

namespace trireme {{

namespace {{
constexpr StandInRange kStandIns[] = {{
{rows(stand_ins(category))}
}};
constexpr CodePointRange kNfcInert[] = {{
{rows(inert(category))}
}};
}}  // namespace

std::span<const StandInRange> stand_in_ranges() {{ return kStandIns; }}
std::span<const CodePointRange> nfc_inert_ranges() {{ return kNfcInert; }}

}}  // namespace trireme
""")


main()
