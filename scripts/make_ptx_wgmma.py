#!/usr/bin/env python3
"""Writes kernels/common/ptx_wgmma.cuh: wgmma has an operand for each accumulator register, so that
each width is a function of its own.

    scripts/make_ptx_wgmma.py > kernels/common/ptx_wgmma.cuh
"""

import sys

if sys.argv[1:2] and sys.argv[1].startswith("-"):
    print(__doc__)
    sys.exit(0 if sys.argv[1] in ("-h", "--help") else 2)

WIDTHS = (64, 96, 128, 192, 256)


def rows(items, count):
    return [", ".join(items[i : i + count]) for i in range(0, len(items), count)]


def function(n, a_in_registers):
    count = n // 2
    registers = rows([f"%{i}" for i in range(count)], 16)
    accumulators = rows([f'"+f"(d[{i}])' for i in range(count)], 8)
    at = count
    if a_in_registers:
        a = f"{{%{at}, %{at + 1}, %{at + 2}, %{at + 3}}}"
        at += 4
        argument = "const uint32_t (&a)[4]"
        values = ', '.join(f'"r"(a[{i}])' for i in range(4))
        template, transposes = "template <int kTransposeB = 0>", 1
    else:
        a = f"%{at}"
        at += 1
        argument, values = "uint64_t a", '"l"(a)'
        template, transposes = "template <int kTransposeA = 0, int kTransposeB = 0>", 2
    b, accumulate = f"%{at}", f"%{at + 1}"
    flags = [f"%{at + 2 + i}" for i in range(transposes)]
    trans = ['"n"(kTransposeB)']
    if transposes == 2:
        trans.insert(0, '"n"(kTransposeA)')
    lines = [
        template,
        f"__device__ __forceinline__ void wgmma_m64n{n}k16_bf16(float (&d)[{count}], {argument}, uint64_t b,",
        "    bool accumulate) {",
    ]
    lines += [
        "  asm volatile(",
        f'      "{{\\n.reg .pred p;\\nsetp.ne.b32 p, {accumulate}, 0;\\n"',
        f'      "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{"',
    ]
    for i, text in enumerate(registers):
        lines.append(f'      "{text}' + ('}, "' if i + 1 == len(registers) else ', "'))
    lines.append(f'      "{a}, {b}, p, 1, 1, {", ".join(flags)};\\n}}\\n"')
    for i, text in enumerate(accumulators):
        lines.append(("      : " if i == 0 else "        ") + text + ("," if i + 1 < len(accumulators) else ""))
    lines.append(f'      : {values}, "l"(b), "r"(static_cast<int>(accumulate)),')
    lines.append(f'        {", ".join(trans)});')
    lines.append("}")
    return "\n".join(lines)


print("""// Made by scripts/make_ptx_wgmma.py. Included by ptx_sm90.cuh, inside its namespace.
//
// d (64 x N fp32) (+)= a (64 x 16) b (N x 16)^T by one warpgroup. a: a descriptor, or registers as in
// mma.m16n8k16, 16 rows a warp. kTransposeA, kTransposeB: 1 where the operand's rows in shared memory
// run along M or N (wgmma_descriptor_sw128_mn).""")
for width in WIDTHS:
    for in_registers in (False, True):
        print(function(width, in_registers))
