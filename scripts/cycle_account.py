#!/usr/bin/env python3
"""An account of cycles: how fast kernels are, from their machine code, held to times that others measured.

    scripts/cycle_account.py [--cases]

A multiprocessor works through a main loop in the time of its tensor cores or of its instructions, whichever is longer,
and a part of the other that does not overlap. Around that there are whole waves of tiles, each with a fixed cost, the
bytes of the operands, and a launch:

    loop   = max(T, I, S) + overlap min(T, I)                     cycles
    time   = launches launch + max(waves (steps loop + tile) / clock, bytes / bandwidth) + bytes beside / bandwidth

T: operations of the tile's step over 4,096 (bf16) or 8,192 (fp8) a cycle; I: issue slots of one of the four schedulers,
an instruction each and eight for a special function (exponentials go at a quarter of a warp's width a cycle and less).
S, of attention's backward pass, which it bounds, and in the last table of our fp8 products: bytes of shared memory over 128 a cycle,
what products read there, what warps store and load, and what TMA brings and takes. Bytes beside: of kernels before and after.
Instructions are read from the tests/bench/results/*/main_loops.md (scripts/check_sass.py --scale), of a kernel from the newest. The
five constants (overlap, tile, clock, bandwidth, launch) are fitted to published times of DeepGEMM (H800) and FlashAttention-3
(H100); the error of a case is that of constants fitted to all others. Times that were measured otherwise are checked, not
fitted to. Then the same account of ours. --cases prints every case.
"""

import argparse
import dataclasses
import math
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MULTIPROCESSORS = 132
BF16, FP8 = 4096, 8192  # operations a cycle: 989 and 1,979 TFLOP/s of 132 multiprocessors at 1.83 GHz

# DeepGEMM 55ab91f (2025-03-25), README, H800 SXM5, fp8 with scales of 1 x 128 and 128 x 128, bf16 results:
# groups, m of a group, n, k, TFLOP/s.
DEEP_GEMM = [
    (1, 64, 2112, 7168, 206), (1, 64, 24576, 1536, 289), (1, 64, 32768, 512, 219), (1, 64, 7168, 16384, 336),
    (1, 64, 4096, 7168, 287), (1, 64, 7168, 2048, 295), (1, 128, 2112, 7168, 352), (1, 128, 24576, 1536, 535),
    (1, 128, 32768, 512, 358), (1, 128, 7168, 16384, 645), (1, 128, 4096, 7168, 533), (1, 128, 7168, 2048, 510),
    (1, 4096, 2112, 7168, 1009), (1, 4096, 24576, 1536, 1125), (1, 4096, 32768, 512, 751), (1, 4096, 7168, 16384, 1426),
    (1, 4096, 4096, 7168, 1265), (1, 4096, 7168, 2048, 1168),
    (4, 8192, 4096, 7168, 1346), (4, 8192, 7168, 2048, 1214), (8, 4096, 4096, 7168, 1346), (8, 4096, 7168, 2048, 1214),
    (1, 1024, 4096, 7168, 1233), (1, 1024, 7168, 2048, 925), (2, 512, 4096, 7168, 1040), (2, 512, 7168, 2048, 916),
    (4, 256, 4096, 7168, 932), (4, 256, 7168, 2048, 815),
]
# FlashAttention-3, forward, bf16, head size 128, 16 heads, no mask, H100: github.com/pytorch/benchmark/pull/2391
# (2024-07-23): sequences, tokens, TFLOP/s.
FLASH_ATTENTION_3 = [(32, 512, 430.32), (16, 1024, 517.099), (8, 2048, 565.544), (4, 4096, 590.233), (2, 8192, 614.234), (1, 16384, 620.73)]
FLASH_SEQUENCES = (512, 1024, 2048, 4096, 8192, 16384)
# Its backward pass, fp16, no mask, H100, 16,384 tokens of 2,048: arXiv 2407.08608, figure 6: head size, TFLOP/s of sequences
# of 512 to 16,384. Bytes of 14 an element pass before and after: O and dO are read, sums of dQ cleared, then rounded.
FLASH_ATTENTION_3_BACKWARD = {64: (272, 363, 422, 453, 472, 474), 128: (316, 424, 501, 542, 559, 561)}
BESIDE_BACKWARD = 14
# The same in bf16, head size 128, 4 sequences, 48 heads, H100, of 1,024 to 8,192 tokens, whole calls through autograd:
# github.com/meta-pytorch/tritonbench/pull/1256 (2026-09-04, no mask, TFLOP/s) and 1267 (2026-09-15, causal, us).
AUTOGRAD = (313.324, 434.825, 519.827, 561.410)
AUTOGRAD_CAUSAL = (709.66, 1631.26, 4643.46, 15308.16)
# Head size 256, 16,384 tokens, no mask, H200, TFLOP/s: github.com/Dao-AILab/flash-attention/pull/2889 (2026-09-14).
FLASH_ATTENTION_3_D256 = 480
# Ours on an H200, causal, dQ in any order, by Nsight: tests/bench/results/2026-11-27-hopper-fp8.
OURS_BACKWARD = {128: 571, 64: 253}


@dataclasses.dataclass
class Loop:
    instructions: float
    products: int
    special: int = 0
    turn: float = 0  # instructions of a tile without a mask
    shared: float = 0  # cycles of shared memory that a warpgroup's instructions take in it

    def slots(self):
        return self.instructions + 7 * self.special


@dataclasses.dataclass
class Case:
    """Of a multiprocessor: `tiles` one after another, each of `steps` turns of a loop with T and I cycles."""

    name: str
    tiles: float
    steps: float
    tensor: float
    issue: float
    bytes: float
    operations: float
    published: float = 0.0  # TFLOP/s
    shared: float = 0.0
    beside: float = 0.0  # bytes
    launches: int = 1

    def loop(self, c):
        return max(self.tensor, self.issue, self.shared) + c["overlap"] * min(self.tensor, self.issue)

    def seconds(self, c):
        compute = self.tiles * (self.steps * self.loop(c) + c["tile"]) / (c["clock"] * 1e9)
        bandwidth = c["bandwidth"] * 1e12
        return self.launches * c["launch"] * 1e-6 + max(compute, self.bytes / bandwidth) + self.beside / bandwidth

    def tflops(self, c):
        return self.operations / self.seconds(c) / 1e12

    def error(self, c):
        return self.tflops(c) / self.published - 1


def main_loops():
    """{file kernel: [Loop]} of the recorded tables."""
    found = {}
    for table in sorted((ROOT / "tests/bench/results").glob("*/main_loops.md")):
        of_table = {}
        for line in table.read_text().splitlines()[2:]:
            file, kernel, instructions, products, _, special, *others = [cell.strip() for cell in line.strip("| ").split("|")]
            turn, shared = others[4:] or (0, 0)
            of_table.setdefault(f"{file} {kernel}", []).append(Loop(int(instructions), int(products), int(special), int(turn), int(shared)))
        found.update(of_table)
    return found


def loop_of(found, kernel, products):
    """The shortest of a kernel's loops with so many products: the usual turn, without a mask."""
    loops = [loop for loop in found.get(kernel, []) if loop.products == products]
    if not loops:
        sys.exit(f"cycle_account: main_loops.md has no loop of {kernel} with {products} products")
    return min(loops, key=lambda loop: loop.instructions)


def ceil(a, b):
    return -(-a // b)


def deep_gemm_case(unrolled, groups, m, n, k, published):
    """Tiles as it chose them: the width with the fewest waves, then the fullest last one."""
    height = 64 if m <= 64 else 128
    best = None
    for width in range(16, 129, 8):
        tiles = groups * ceil(m, height) * ceil(n, width)
        waves, last = ceil(tiles, MULTIPROCESSORS), (tiles - 1) % MULTIPROCESSORS + 1
        key = (waves, -last, -width)
        if best is None or key < best[0]:
            best = (key, width, waves)
    _, width, waves = best
    # Of a step of 128 of k in the loop of a 128 x 128 tile, 64 instructions add a thread's sums; the rest stays.
    step = unrolled.instructions / (unrolled.products / 4) - 64 + width / 2
    return Case(f"DeepGEMM fp8 {groups} x [{m}, {n}, {k}]", waves, ceil(k, 128), height * width * 128 * 2 / FP8, step * height / 64,
                groups * (m * k + n * k + 2 * m * n), 2 * groups * m * n * k, published)


def attention_case(name, loop, sequences, tokens, published=0.0, queries=128, keys=176, heads=16, dim=128):
    """Two warpgroups, each 64 queries; a loop for each block of keys."""
    tiles = ceil(sequences * heads * ceil(tokens, queries), MULTIPROCESSORS)
    return Case(f"{name} [{sequences}, {tokens}, {heads}, {dim}]", tiles, tokens / keys, 2 * queries * keys * dim * 2 / BF16,
                loop.slots() * queries / 64, 4 * sequences * tokens * heads * dim * 2, 4 * sequences * heads * tokens * tokens * dim, published)


def mean_loop(loops):
    return Loop(*(sum(values) / len(loops) for values in zip(*(dataclasses.astuple(loop) for loop in loops))))


@dataclasses.dataclass
class Backward:
    """A kernel that owns keys, 64 or half of them for each of two warpgroups, and streams queries past them."""

    name: str
    loop: Loop
    queries: int
    keys: int = 128
    sums: int = 4  # bytes an element of dQ that TMA takes from shared memory

    def case(self, sequences, tokens, heads, dim, causal=False, published=0.0, passes=True):
        """Without a mask whole waves; causal, blocks with the most queries begin first, so that all end together.
        passes: with those before and after."""
        blocks, elements = ceil(tokens, self.keys), sequences * tokens * heads * dim
        steps = sum(ceil(tokens - block * self.keys if causal else tokens, self.queries) for block in range(blocks)) / blocks
        tiles = sequences * heads * blocks / MULTIPROCESSORS
        return Case(f"{self.name} [{sequences}, {tokens}, {heads}, {dim}]{', causal' if causal else ''}",
                    tiles if causal else math.ceil(tiles), steps, 10 * self.queries * self.keys * dim / BF16,
                    2 * (self.loop.turn + 7 * self.loop.special), 16 * elements, 10 * elements * tokens / (2 if causal else 1), published,
                    2 * self.loop.shared + self.queries * dim * (4 + self.sums) / 128, BESIDE_BACKWARD * elements if passes else 0,
                    3 if passes else 1)


def backward_kernels(found):
    """{(head size, causal): FlashAttention-3's}, {head size: ours}; tiles as they choose them."""
    name, theirs = "FlashAttention-3 backward", "flash_attention_3_backward_d{}{} cutlass::device_kernel"
    tiles = {(64, False): (128, 128, 4), (64, True): (128, 128, 4), (128, False): (80, 128, 4), (128, True): (64, 128, 4), (256, False): (64, 80, 0)}
    fa3 = {key: Backward(name, min(found[theirs.format(key[0], "_causal" if key[1] else "")], key=lambda loop: loop.turn), *tile)
           for key, tile in tiles.items()}
    ours = {dim: Backward("attention backward, wgmma", found[f"attention_backward_d{dim}_cuda_sm90.cu attention::backward_sm90_kernel"][0], queries)
            for dim, queries in ((64, 128), (128, 64))}
    for dim in (192, 256):  # two warpgroups with a loop each
        loops = found[f"attention_backward_d{dim}_cuda_sm90.cu attention::wide_backward_sm90_kernel"]
        ours[dim] = Backward("attention backward, wgmma", mean_loop(loops), 64, 64)
    return fa3, ours


def published_cases(found):
    fp8 = loop_of(found, "deep_gemm deep_gemm::sm90_fp8_gemm_1d2d_impl", 32)
    fa3 = loop_of(found, "flash_attention_3 cutlass::device_kernel", 19)
    backward = [backward_kernels(found)[0][dim, False].case(16384 // tokens, tokens, 2048 // dim, dim, published=tflops)
                for dim, of_dim in FLASH_ATTENTION_3_BACKWARD.items() for tokens, tflops in zip(FLASH_SEQUENCES, of_dim)]
    return ([deep_gemm_case(fp8, *case) for case in DEEP_GEMM] + [attention_case("FlashAttention-3", fa3, *case) for case in FLASH_ATTENTION_3]
            + backward)


def checked_cases(found):
    """Measured and not fitted to: other hands' whole calls, another head size, and ours."""
    fa3, ours = backward_kernels(found)
    cases = []
    for tokens, tflops, microseconds in zip(FLASH_SEQUENCES[1:], AUTOGRAD, AUTOGRAD_CAUSAL):
        cases.append(fa3[128, False].case(4, tokens, 48, 128, published=tflops))
        causal = fa3[128, True].case(4, tokens, 48, 128, causal=True)
        cases.append(dataclasses.replace(causal, published=causal.operations / microseconds / 1e6))
    cases.append(fa3[256, False].case(1, 16384, 8, 256, published=FLASH_ATTENTION_3_D256))
    cases.append(ours[128].case(1, 8192, 32, 128, causal=True, published=OURS_BACKWARD[128], passes=False))
    cases.append(ours[64].case(16, 1024, 12, 64, causal=True, published=OURS_BACKWARD[64], passes=False))
    return cases


START = {"overlap": 0.5, "tile": 1000.0, "clock": 1.6, "bandwidth": 2.7, "launch": 2.0}
BOUNDS = {"overlap": (0.0, 1.5), "tile": (0.0, 8000.0), "clock": (1.2, 1.98), "bandwidth": (1.5, 3.35), "launch": (0.0, 8.0)}


def fit(cases):
    """The constants of the least mean absolute error, by coordinate descent."""
    constants = dict(START)

    def cost(c):
        return sum(abs(math.log(case.tflops(c) / case.published)) for case in cases)

    best, step = cost(constants), 0.25
    while step > 1e-3:
        better = False
        for key, (low, high) in BOUNDS.items():
            for sign in (1, -1):
                trial = dict(constants)
                trial[key] = min(max(trial[key] + sign * step * START[key], low), high)
                value = cost(trial)
                if value < best - 1e-9:
                    constants, best, better = trial, value, True
        if not better:
            step /= 2
    return constants


def left_out_errors(cases):
    return [case.error(fit(cases[:i] + cases[i + 1 :])) for i, case in enumerate(cases)]


def mean_absolute(values):
    return sum(abs(value) for value in values) / len(values)


def product_case(name, loop, m, n, k, tile_n):
    """Ours for Hopper: tiles of 128 rows, a turn of 64 of k."""
    waves = ceil(ceil(m, 128) * ceil(n, tile_n), MULTIPROCESSORS)
    return Case(f"{name} [{m}, {n}, {k}]", waves, ceil(k, 64), 128 * tile_n * 64 * 2 / BF16, loop.slots() * 2,
                2 * (m * k + n * k + m * n), 2 * m * n * k)


@dataclasses.dataclass
class Fp8Tile:
    """Of kernels/gemm/gemm_fp8_sm90.cuh: warpgroups, times 64 rows of each, blocks that share b, words of scales that a warp reads
    for 128 of k; cycles of a turn by kFp8StepCycles, which decide."""

    consumers: int
    waves: int
    cluster: int
    words: int
    cycles: int

    def height(self):
        return 64 * self.consumers * self.waves

    def turns(self, m, n):
        return ceil(ceil(m, self.height() * self.cluster) * ceil(n, 128), MULTIPROCESSORS // self.cluster)

    def shared(self):
        """A wave's products read 24 KiB; what TMA brings; a word a lane and cycle."""
        return self.consumers * (192 * self.waves + 4 * self.words) + self.height() + 128


FP8_TILES = {False: (Fp8Tile(2, 2, 2, 6, 1600), Fp8Tile(2, 1, 1, 3, 900)), True: (Fp8Tile(2, 2, 2, 44, 2030), Fp8Tile(2, 1, 1, 34, 1230))}


def split_pieces(m, n, k):
    """kernels/gemm/gemm_split.h, of tiles of 256 x 128: the most pieces that a block has, or that wait for each other; its steps."""
    tiles, steps = ceil(m, 256) * ceil(n, 128), ceil(k, 128)
    blocks = min(max(tiles * steps // 16, tiles), MULTIPROCESSORS)
    whole = max(tiles // blocks - (tiles % blocks != 0), 0)
    of_block = (tiles - whole * blocks) * steps / blocks
    return whole + (max(ceil(of_block, steps), ceil(steps, of_block)) + 1 if of_block else 0), whole * steps + of_block


def fp8_case(name, found, m, n, k, by_column=False, shared=False, split=False):
    """Ours of fp8 with scales of blocks, of b's 128 columns or, for gradients of weights, of each; a turn of 128 of k, of which all
    warpgroups' instructions share a scheduler. shared: with its shared memory, which the cases of others leave out. split: blocks
    share sums."""
    file, out = ("gemm_fp8_f32_cuda_sm90.cu", 8) if by_column else ("gemm_fp8_cuda_sm90.cu", 2)
    if split:
        file = "gemm_fp8_split_cuda_sm90.cu"
    tile = FP8_TILES[by_column][0] if split else min(FP8_TILES[by_column], key=lambda tile: tile.turns(m, n) * tile.cycles)
    # Those that read scales beside what products read; the longest where each column has its own.
    loops = [loop for loop in found[f"{file} gemm_fp8_sm90_kernel"] if loop.products == 4 * tile.waves and loop.shared > 192 * tile.waves]
    if not loops:
        sys.exit(f"cycle_account: main_loops.md has no loop of {file} with scales and {4 * tile.waves} products")
    loop = max(loops, key=lambda loop: loop.instructions)
    pieces, steps = split_pieces(m, n, k) if split else (tile.turns(m, n), tile.turns(m, n) * ceil(k, 128))
    return Case(f"{name} [{m}, {n}, {k}]", pieces, steps / pieces, tile.height() * 128 * 128 * 2 / FP8, loop.slots() * tile.consumers,
                m * k + n * k + 4 * m * ceil(k, 128) + out * m * n, 2 * m * n * k, shared=tile.shared() if shared else 0)


# Of wgmma's rate on Hopper; kernels/README.md, "mma.sync".
MMA_SYNC = 0.62


def our_cases(found):
    """(case, the same shape by a kernel of others)."""
    ours = loop_of(found, "gemm_cuda_sm90.cu gemm_sm90_kernel", 4)
    theirs = loop_of(found, "deep_gemm deep_gemm::sm90_bf16_gemm_impl", 16)
    attention = loop_of(found, "attention_d128_cuda.cu attention::forward_kernel", 128)
    hopper = {dim: loop_of(found, f"attention_d{dim}_cuda_sm90.cu attention::forward_sm90_kernel", products) for dim, products in ((64, 12), (128, 16))}
    fa3 = loop_of(found, "flash_attention_3 cutlass::device_kernel", 19)
    fp8 = loop_of(found, "deep_gemm deep_gemm::sm90_fp8_gemm_1d2d_impl", 32)
    fa3_small = loop_of(found, "flash_attention_3 cutlass::device_kernel", 12)
    rows = []
    for groups, m, n, k, published in DEEP_GEMM:
        if groups == 1:
            theirs_fp8 = dataclasses.replace(deep_gemm_case(fp8, groups, m, n, k, published), name="DeepGEMM fp8")
            rows.append((fp8_case("product, fp8", found, m, n, k), theirs_fp8))
    for m, n, k in ((8192, 8192, 8192), (16384, 6144, 4096), (16384, 28672, 4096), (16384, 4096, 14336), (2048, 128256, 4096)):
        # Theirs: tiles of 128 x 128, of which four products are a turn of 64 of k.
        rows.append((product_case("product, wgmma", ours, m, n, k, 256),
                     product_case("DeepGEMM bf16", Loop(theirs.instructions / 4, 4), m, n, k, 128)))
    for sequences, tokens in ((4, 4096), (1, 16384)):
        rows.append((attention_case("attention forward, wgmma", hopper[128], sequences, tokens, keys=128),
                     attention_case("FlashAttention-3", fa3, sequences, tokens)))
        small = {"queries": 192, "keys": 128, "heads": 32, "dim": 64}  # theirs with its tile for causal masks
        rows.append((attention_case("attention forward, wgmma", hopper[64], sequences, tokens, **small),
                     attention_case("FlashAttention-3", fa3_small, sequences, tokens, **small)))
        # A warp has 16 queries, a loop takes 64 keys; eight warps a multiprocessor.
        case = attention_case("attention forward, mma.sync", attention, sequences, tokens, keys=64)
        rows.append((dataclasses.replace(case, tensor=case.tensor / MMA_SYNC), attention_case("FlashAttention-3", fa3, sequences, tokens)))
    theirs, own = backward_kernels(found)
    for causal in (False, True):
        for shape in ((4, 4096, 16, 128), (1, 16384, 16, 128), (4, 4096, 32, 64), (1, 16384, 32, 64)):
            rows.append((own[shape[3]].case(*shape, causal, passes=False), theirs[shape[3], causal].case(*shape, causal, passes=False)))
    for shape in ((4, 4096, 8, 256), (1, 16384, 8, 256)):
        rows.append((own[256].case(*shape, passes=False), theirs[256, False].case(*shape, passes=False)))
    return rows


def our_rows(found, constants):
    """Cells of a table: ours, its TFLOP/s, theirs, its TFLOP/s, the quotient."""
    rows = []
    for case, other in our_cases(found):
        of_ours, of_theirs = case.tflops(constants), other.tflops(constants)
        rows.append((case.name, f"{of_ours:.0f}", other.name.split(" [")[0], f"{of_theirs:.0f}", f"{of_ours / of_theirs:.2f}"))
    return rows


# Rows and columns of the weights of a layer of Llama 3 8B; tokens.
LAYER = {"q, k, v": (6144, 4096), "output": (4096, 4096), "gate, up": (28672, 4096), "down": (4096, 14336)}
TOKENS = 16384


def fp8_rows(found, constants):
    """Cells of a table: TFLOP/s of our fp8 products in blocks, with their shared memory."""
    for name, (n, k) in LAYER.items():
        cases = (fp8_case(name, found, TOKENS, n, k, shared=True), fp8_case(name, found, TOKENS, k, n, shared=True),
                 fp8_case(name, found, n, k, TOKENS, by_column=True, shared=True))
        yield (f"{name} [{n}, {k}]", *(f"{case.tflops(constants):.0f}" for case in cases))


# Rows and columns of weights whose tiles do not fill an H200's turns; tokens.
SMALL = {"124M: q, k, v": (2304, 768), "output": (768, 768), "gate, up": (6144, 768), "down": (768, 3072),
         "1.5B: q, k, v": (4800, 1600), "output ": (1600, 1600), "up": (6400, 1600), "down ": (1600, 6400)}


def split_rows(found, constants):
    """Cells of a table: microseconds of such weights' gradients by whole tiles, by blocks that share sums, and the quotient. A tile's
    128 KiB of f32 take 9,000 cycles to be added to the result (kernels/README.md, "Experts of DeepSeek-V3")."""
    constants = {**constants, "tile": 9000.0}
    for name, (n, k) in SMALL.items():
        whole, split = (1e6 * fp8_case(name, found, n, k, TOKENS, by_column=True, shared=True, split=split).seconds(constants) for split in (False, True))
        yield f"{name.strip()} [{n}, {k}]", f"{whole:.0f}", f"{split:.0f}", f"{whole / split:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", action="store_true", help="print every published case")
    args = parser.parse_args()
    found = main_loops()
    cases = published_cases(found)
    constants = fit(cases)
    errors = left_out_errors(cases)
    if args.cases:
        print("| published | TFLOP/s | account | error |\n|---|---|---|---|")
        for case, error in zip(cases, errors):
            print(f"| {case.name} | {case.published:.0f} | {case.published * (1 + error):.0f} | {100 * error:+.0f} % |")
    print(f"{len(cases)} published cases, mean error {100 * mean_absolute(errors):.1f} %, each with the constants of the others; "
          + ", ".join(f"{key} {value:.3g}" for key, value in constants.items()))
    print("| ours | TFLOP/s by the account | theirs, same shape | TFLOP/s by the account | ours / theirs |\n|---|---|---|---|---|")
    for row in our_rows(found, constants):
        print("| " + " | ".join(row) + " |")
    print("\n| our fp8 in blocks, 16,384 tokens | forward | input's gradient | weights' gradient |\n|---|---|---|---|")
    for row in fp8_rows(found, constants):
        print("| " + " | ".join(row) + " |")
    print("\n| weights' gradients in blocks, 16,384 tokens | whole tiles, us | shared sums, us | faster by |\n|---|---|---|---|")
    for row in split_rows(found, constants):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
