"""The PyTorch side of compare_learning, in a process of its own.

usage: learn_worker.py initial DIRECTORY CONFIG.json       writes a model for both to start from
       learn_worker.py train DIRECTORY CONFIG.json DTYPE   trains it; writes DIRECTORY/metrics.jsonl

CONFIG.json is what `train` reads. Beside it lie train.npy and validation.npy, samples of T + 1
tokens in the order of training, as `train data` said them. The lines of metrics.jsonl are those of
`train`, as far as they are compared.
"""

import json
import os
import pathlib
import sys

import numpy
import torch
from transformers import AutoModelForCausalLM

import llama


def write_initial(directory, config):
    torch.manual_seed(config["run"]["seed"])
    llama.make_model(config["model"]).save_pretrained(directory)


@torch.no_grad()
def evaluate(model, loss_of, windows, batch):
    model.eval()
    total = sum(loss_of(part[:, :-1], part[:, 1:]).double().item() * len(part)
                for part in windows.split(batch))
    model.train()
    return total / len(windows)


def run_training(directory, config, dtype, samples, windows):
    steps, batch = config["run"]["steps"], config["batch"]["global"]
    interval, peak = config["evaluation"]["interval_steps"], config["optimizer"]["lr"]
    model = AutoModelForCausalLM.from_pretrained(config["init"]["weights"], dtype=torch.float32,
                                                 attn_implementation="sdpa").train()
    # By grouped products it parts from itself within 15 steps (fp32, 2 of 8 experts, transformers 5.24); eager is the formula.
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    optimizer = llama.make_optimizer(model, config["optimizer"])
    loss_of = llama.Loss(model, dtype)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "metrics.jsonl").open("w", buffering=1) as metrics:
        for step in range(1, steps + 1):
            lr = llama.learning_rate(step, peak, config["lr_schedule"], steps)
            for group in optimizer.param_groups:
                group["lr"] = lr
            loss, norm = llama.train_step(model, optimizer, loss_of,
                                          samples[(step - 1) * batch:step * batch],
                                          config["optimizer"]["clip_grad_norm"])
            print(json.dumps({"kind": "step", "step": step, "loss": loss, "grad_norm": norm,
                              "lr": lr}), file=metrics)
            if step % interval == 0 or step == steps:
                print(json.dumps({"kind": "evaluation", "step": step,
                                  "loss": evaluate(model, loss_of, windows, batch),
                                  "tokens": windows.shape[0] * (windows.shape[1] - 1)}),
                      file=metrics)


def main():
    mode, directory, config_path = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    config = json.loads(config_path.read_text())
    if mode == "initial":
        write_initial(directory, config)
        return
    samples, windows = (torch.from_numpy(numpy.load(config_path.parent / f"{part}.npy")).long()
                        for part in ("train", "validation"))
    run_training(directory, config, sys.argv[4], samples, windows)


if __name__ == "__main__":
    main()
