"""What PyTorch reaches on this GPU, to set beside `train benchmark` and ops_bench_gpu: needs torch alone.

usage: gpu_reference.py [CONFIG.json ...] [--seconds N] [--training-alone]

Prints a table and, as the last line, one JSON object: a large bf16 product, a copy, products in fp8 by cuBLASLt (whole
tensors, and blocks of 128 where torch has them), scaled_dot_product_attention forward and backward by each of its back
ends (TFLOP/s of visible pairs: 4 D a pair forward, 10 D backward), and for each config a training step (bf16 autocast over
fp32 weights, fused AdamW, clipping), eager and compiled.
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def seconds_of(work, seconds, warmup=3):
    for _ in range(warmup):
        work()
    torch.cuda.synchronize()
    count = 1
    while True:
        begin = time.perf_counter()
        for _ in range(count):
            work()
        torch.cuda.synchronize()
        passed = time.perf_counter() - begin
        if passed > seconds:
            return passed / count
        count = max(count + 1, int(count * min(10, 1.2 * seconds / max(passed, 1e-6))))


class Block(torch.nn.Module):
    def __init__(self, m):
        super().__init__()
        self.heads, self.kv = m["num_attention_heads"], m["num_key_value_heads"]
        hidden, ffn = m["hidden_size"], m["intermediate_size"]
        self.size = hidden // self.heads
        linear = lambda a, b: torch.nn.Linear(a, b, bias=False)
        self.norm1, self.norm2 = torch.nn.RMSNorm(hidden), torch.nn.RMSNorm(hidden)
        self.qkv = linear(hidden, (self.heads + 2 * self.kv) * self.size)
        self.out = linear(self.heads * self.size, hidden)
        self.up, self.down = linear(hidden, 2 * ffn), linear(ffn, hidden)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, -1, self.size).split([self.heads, self.kv, self.kv], 2)

        def rotate(h):
            a, c = h.chunk(2, -1)
            return (h * cos + torch.cat((-c, a), -1) * sin).to(h.dtype).transpose(1, 2)

        o = F.scaled_dot_product_attention(rotate(q), rotate(k), v.transpose(1, 2), is_causal=True,
                                           enable_gqa=self.kv != self.heads)
        x = x + self.out(o.transpose(1, 2).reshape(b, t, -1))
        gate, up = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(torch.nn.Module):
    def __init__(self, m):
        super().__init__()
        self.embed = torch.nn.Embedding(m["vocab_size"], m["hidden_size"])
        self.blocks = torch.nn.ModuleList(Block(m) for _ in range(m["num_hidden_layers"]))
        self.norm = torch.nn.RMSNorm(m["hidden_size"])
        self.head = torch.nn.Linear(m["hidden_size"], m["vocab_size"], bias=False)
        size, t = m["hidden_size"] // m["num_attention_heads"], m["max_position_embeddings"]
        angles = torch.outer(torch.arange(t), 1e4 ** -(torch.arange(0, size, 2) / size)).repeat(1, 2)[None, :, None]
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids, targets):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


def training(config, compiled, seconds):
    m, batch, length = config["model"], config["batch"], config["data"]["sequence_length"]
    torch.manual_seed(0)
    model = Llama(m).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if compiled else model
    accumulation = batch["global"] // batch["micro"]
    ids = torch.randint(0, m["vocab_size"], (accumulation, batch["micro"], length + 1), device="cuda")

    def step():
        for part in ids:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = run(part[:, :-1], part[:, 1:])
            (loss / accumulation).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    torch.cuda.reset_peak_memory_stats()
    return batch["global"] * length / seconds_of(step, seconds, 4), torch.cuda.max_memory_allocated()


def attention(b, heads, kv, t, d, causal, backend, seconds):
    shape = lambda h: torch.randn(b, h, t, d, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    q, k, v = shape(heads), shape(kv), shape(kv)
    pairs = b * heads * t * (t + 1) // 2 if causal else b * heads * t * t
    with sdpa_kernel(backend):
        call = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=kv != heads)
        forward = seconds_of(call, seconds)
        o = call()
        d_o = torch.randn_like(o)
        backward = seconds_of(lambda: torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True), seconds)
    return 4e-12 * d * pairs / forward, 10e-12 * d * pairs / backward


def codes_of(rows, columns):
    return torch.randn(rows, columns, device="cuda").clamp(-4, 4).to(torch.float8_e4m3fn)


# c [m, n] = a [m, k] b [n, k]^T; a scale for the tensor, or for 128 of k and 1 or 128 rows.
def fp8_product(m, n, k, scaling, seconds):
    a, b = codes_of(m, k), codes_of(n, k).t()
    if scaling.startswith("tensor"):
        one = torch.ones((), device="cuda")
        fast = scaling == "tensor"
        return seconds_of(lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=fast), seconds)
    kinds = F.ScalingType
    blocks = lambda n: -(-n // 128)
    if scaling == "block":  # 1 x 128 beside 128 x 128, whose rows of scales are padded to four
        padded = torch.ones(blocks(n), -(-blocks(k) // 4) * 4, device="cuda")
        kind_b, scale_b = kinds.BlockWise128x128, padded[:, :blocks(k)].t()
    else:
        kind_b, scale_b = kinds.BlockWise1x128, torch.ones(blocks(k), n, device="cuda").t()
    scale_a = torch.ones(blocks(k), m, device="cuda").t()  # rows lie beside each other
    return seconds_of(lambda: F.scaled_mm(a, b, scale_a, kinds.BlockWise1x128, scale_b, kind_b), seconds)


def measure_fp8(arguments, result):
    result["fp8"] = []
    for rows, hidden, ffn in ((16384, 768, 3072), (8192, 1600, 6400), (8192, 4096, 14336)):
        for name, shape in (("forward", (rows, 2 * ffn, hidden)), ("input", (rows, hidden, 2 * ffn)),
                            ("weight", (2 * ffn, hidden, rows))):
            for scaling in ("tensor", "tensor precise", "block" if name != "weight" else "block weight"):
                try:
                    rate = 2e-12 * shape[0] * shape[1] * shape[2] / fp8_product(*shape, scaling, arguments.seconds / 4)
                except (RuntimeError, ValueError, AttributeError) as error:
                    print("fp8", shape, scaling, "failed:", str(error).splitlines()[0], flush=True)
                    continue
                result["fp8"].append({"shape": shape, "product": name, "scaling": scaling, "tflops": rate})
                print(f"fp8 {name} {shape} {scaling}: {rate:.0f} TFLOP/s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("configs", nargs="*")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--training-alone", action="store_true")
    arguments = parser.parse_args()
    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    if not arguments.training_alone:
        measure_ops(arguments, result)
    measure_training(arguments, result)
    print(json.dumps(result))


def measure_ops(arguments, result):
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    result["product_bf16_tflops"] = 2e-12 * 8192**3 / seconds_of(lambda: a @ b, arguments.seconds)
    x = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    result["copy_tb_per_second"] = 4e-12 * x.numel() / seconds_of(lambda: y.copy_(x), arguments.seconds)
    print(f"{result['gpu']}, torch {result['torch']}: product {result['product_bf16_tflops']:.0f} TFLOP/s, "
          f"copy {result['copy_tb_per_second']:.2f} TB/s", flush=True)
    del a, b, x, y
    measure_fp8(arguments, result)
    result["attention"] = []
    for shape in ((16, 12, 12, 1024, 64, True), (8, 25, 25, 1024, 64, True), (1, 32, 8, 8192, 128, True),
                  (1, 32, 8, 16384, 128, True), (1, 32, 32, 16384, 128, False)):
        for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
            for deterministic in (False, True):
                torch.use_deterministic_algorithms(deterministic, warn_only=True)
                try:
                    forward, backward = attention(*shape, getattr(SDPBackend, name), arguments.seconds / 2)
                except RuntimeError as error:
                    print(shape, name, deterministic, "failed:", str(error).splitlines()[0])
                    continue
                result["attention"].append({"shape": shape, "backend": name, "deterministic": deterministic,
                                            "forward_tflops": forward, "backward_tflops": backward})
                print(f"attention {shape} {name} deterministic={deterministic}: {forward:.0f} forward, {backward:.0f} "
                      "backward TFLOP/s", flush=True)
    torch.use_deterministic_algorithms(False)
    torch.cuda.empty_cache()


def measure_training(arguments, result):
    result["training"] = []
    for path in arguments.configs:
        with open(path) as file:
            config = json.load(file)
        for compiled in (False, True):
            try:
                rate, memory = training(config, compiled, 4 * arguments.seconds)
            except torch.OutOfMemoryError:
                print(path, "compiled" if compiled else "eager", "does not fit")
                continue
            result["training"].append({"config": path, "compiled": compiled, "tokens_per_second": rate, "bytes": memory})
            print(f"{path} {'compiled' if compiled else 'eager'}: {rate:,.0f} tokens/s, {memory / 2**30:.1f} GiB", flush=True)
            torch.cuda.empty_cache()


main()
