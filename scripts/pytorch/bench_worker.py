"""One measurement of the PyTorch side, in a process of its own; prints one JSON object.

usage: bench_worker.py step|machine|check SPECIFICATION.json

step     times training steps: eager or compiled, one process or DistributedDataParallel over gloo
machine  rate of a large matrix product, and of a copy
check    writes a model for `train` to start from, and takes two updates on the samples given
"""

import json
import os
import pathlib
import sys
import time

import torch

import llama


def peak_bytes():
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def timed_steps(spec):
    ranks = spec.get("ranks", 1)
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    before_model = peak_bytes()
    model = llama.make_model(spec["model"])
    optimizer = llama.make_optimizer(model, {"lr": 1e-4})
    parameters = sum(p.numel() for p in model.parameters())
    loss_of = llama.Loss(model, spec["dtype"])
    if spec["compile"]:
        loss_of.compile()
    if ranks > 1:
        loss_of = torch.nn.parallel.DistributedDataParallel(loss_of)
    shape = (spec["batch"] // ranks, spec["sequence"] + 1)
    samples = torch.randint(0, spec["model"]["vocab_size"], shape)
    seconds = []
    for step in range(spec["warmup"] + spec["steps"]):
        begin = time.perf_counter()
        llama.train_step(model, optimizer, loss_of, samples, 1.0, micro=spec.get("micro"))
        if ranks > 1:
            torch.distributed.barrier()
        if step >= spec["warmup"]:
            seconds.append(time.perf_counter() - begin)
    memory = [peak_bytes()]
    if ranks > 1:
        memory = [None] * ranks
        torch.distributed.all_gather_object(memory, peak_bytes())
        is_first = torch.distributed.get_rank() == 0
        # Without these a rank may find the other's sockets closed while it still sends.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
        if not is_first:
            return None
    return {"step_seconds": seconds, "memory_bytes": memory, "parameters": parameters,
            "memory_before_model_bytes": before_model}


def best_of(repeats, body):
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        body()
        best = min(best, time.perf_counter() - begin)
    return best


def machine_rates(spec):
    """bf16 only where asked for: without instructions for it, one product takes minutes."""
    n = 2048
    rates = {}
    for name, dtype in (("sgemm_gflops", torch.float32), ("bf16_gemm_gflops", torch.bfloat16)):
        if dtype == torch.bfloat16 and not spec["bf16"]:
            continue
        a, b = torch.randn(n, n).to(dtype), torch.randn(n, n).to(dtype)
        c = torch.empty(n, n, dtype=dtype)
        torch.matmul(a, b, out=c)
        rates[name] = 2 * n**3 / best_of(10, lambda: torch.matmul(a, b, out=c)) * 1e-9
    source = torch.ones(64 * 2**20)
    target = torch.zeros_like(source)
    copied = 2 * source.numel() * source.element_size()
    rates["copy_gb_per_second"] = copied / best_of(10, lambda: target.copy_(source)) * 1e-9
    return rates


def check(spec):
    torch.manual_seed(0)
    model = llama.make_model(spec["model"])
    model.save_pretrained(spec["directory"])
    optimizer = llama.make_optimizer(model, {"lr": spec["lr"]})
    loss_of = llama.Loss(model, "fp32")
    samples = torch.tensor(json.loads(pathlib.Path(spec["samples"]).read_text()))
    norms = []
    steps = [llama.train_step(model, optimizer, loss_of, batch, 1.0,
                              lambda model: norms.append(llama.exact_norm(model)))
             for batch in samples.split(spec["batch"])]
    return {"parameters": sum(p.numel() for p in model.parameters()),
            "loss": [loss for loss, _ in steps], "grad_norm": norms,
            "grad_norm_by_torch": [norm for _, norm in steps]}


def main():
    spec = json.loads(pathlib.Path(sys.argv[2]).read_text())
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    result = {"step": timed_steps, "machine": machine_rates, "check": check}[sys.argv[1]](spec)
    if result is not None:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
