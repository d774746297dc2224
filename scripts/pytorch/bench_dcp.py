#!/usr/bin/env python3
"""torch.distributed.checkpoint on the tensors of tests/bench/checkpoint_io_bench.cc.

usage: bench_dcp.py save|load|async DIRECTORY [--ranks 2] [--layers 16] [--threads 1]

Every rank holds its rows of each tensor as a DTensor (Shard(0)), as FSDP's states are. Prints lines of JSON:
seconds from a barrier to the last rank's end; of `async` the stall of each save, with a save in flight waited
for before the next begins, and ten seconds of work on the state before the first.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard


def tensors_of(layers):
    tensors = {"model.embed_tokens.weight": (22000, 1024), "lm_head.weight": (22000, 1024)}
    for i in range(layers):
        at = f"model.layers.{i}."
        for name in "qkvo":
            tensors[f"{at}self_attn.{name}_proj.weight"] = (1024, 1024)
        for name in ("gate", "up"):
            tensors[f"{at}mlp.{name}_proj.weight"] = (2816, 1024)
        tensors[f"{at}mlp.down_proj.weight"] = (1024, 2816)
        tensors[f"{at}input_layernorm.weight"] = (1024,)
        tensors[f"{at}post_attention_layernorm.weight"] = (1024,)
    return tensors


def state_of(layers, mesh, rank, ranks):
    state, size = {}, 0
    for name, shape in tensors_of(layers).items():
        for full in (f"parameters/{name}", f"optimizer/{name}/exp_avg", f"optimizer/{name}/exp_avg_sq"):
            local = torch.empty(shape[0] // ranks, *shape[1:]).uniform_(-8, 8)
            state[full] = DTensor.from_local(local, mesh, [Shard(0)])
            size += local.nbytes
    return state, size


def seconds_of(work):
    dist.barrier()
    begin = time.perf_counter()
    result = work()
    dist.barrier()
    return time.perf_counter() - begin, result


def run(rank, options):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options.port))
    dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (options.ranks,))
    state, size = state_of(options.layers, mesh, rank, options.ranks)
    total = size * options.ranks
    writer = None
    if options.mode == "save":
        writer = dcp.FileSystemWriter(options.directory, thread_count=options.threads)
        seconds, _ = seconds_of(lambda: dcp.save(state, storage_writer=writer))
        report(rank, mode="save", bytes=total, seconds=seconds)
    elif options.mode == "load":
        seconds, _ = seconds_of(lambda: dcp.load(state, checkpoint_id=options.directory))
        report(rank, mode="load", bytes=total, seconds=seconds)
    else:
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        begin = time.perf_counter()
        while time.perf_counter() - begin < 10:
            for tensor in state.values():
                tensor.to_local().uniform_(-8, 8)
        for number in range(options.saves):
            folder = os.path.join(options.directory, str(number))
            stall, future = seconds_of(lambda: dcp.async_save(
                state, checkpoint_id=folder, async_checkpointer_type=AsyncCheckpointerType.THREAD))
            report(rank, mode="async", number=number, bytes=total, seconds=stall)
            future.result()
    dist.destroy_process_group()


def report(rank, **values):
    if rank == 0:
        print(json.dumps(values), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("save", "load", "async"))
    parser.add_argument("directory")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1, help="of FileSystemWriter in each process")
    parser.add_argument("--saves", type=int, default=3, help="of async")
    parser.add_argument("--port", type=int, default=29511)
    multiprocessing.spawn(run, (parser.parse_args(),), nprocs=parser.parse_args().ranks)


if __name__ == "__main__":
    main()
