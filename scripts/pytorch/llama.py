"""The PyTorch side of all comparisons: transformers' model, PyTorch's AdamW, one training step.

A config is the dictionary that `train` reads: its `model` holds the keys of a Hugging Face config.
"""

import contextlib
import math

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()


def make_model(keys):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**keys), attn_implementation="sdpa")
    return model.float().train()


def make_optimizer(model, optimizer):
    """Decay applies to tensors of two or more dims, as in `train`."""
    decay = optimizer.get("weight_decay", 0.1)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=optimizer["lr"], eps=optimizer.get("eps", 1e-8),
                             betas=tuple(optimizer.get("betas", (0.9, 0.95))), fused=True)


class Loss(torch.nn.Module):
    """The mean loss of (inputs, targets): the part of a step that torch.compile is given."""

    def __init__(self, model, dtype):
        super().__init__()
        self.model, self.bf16 = model, dtype == "bf16"

    def forward(self, inputs, targets):
        autocast = (torch.autocast("cpu", dtype=torch.bfloat16) if self.bf16
                    else contextlib.nullcontext())
        with autocast:
            logits = self.model(input_ids=inputs, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def exact_norm(model):
    """Of all gradients. torch's own sums in fp32: 1e-4 off over tens of millions of elements."""
    return math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))


def train_step(model, optimizer, loss_of, samples, clip, before_clipping=None, micro=None):
    """One update from samples [batch, T + 1], `micro` at a time (default: all); returns loss and
    gradient norm as numbers."""
    parts = samples.split(micro or len(samples))
    loss = 0.0
    for part in parts:
        share = loss_of(part[:, :-1], part[:, 1:]) * (len(part) / len(samples))
        share.backward()
        loss += share.detach()
    if before_clipping:
        before_clipping(model)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss), norm.item()


def learning_rate(update, lr, schedule, steps):
    """Of the update-th update, from 1: linear warm-up to lr, then half a cosine down to min_lr."""
    warmup, low = schedule.get("warmup_steps", 0), schedule.get("min_lr", 0.0)
    if update <= warmup:
        return lr * update / warmup
    t = (update - warmup) / (steps - warmup)
    return low + (lr - low) * (1 + math.cos(math.pi * t)) / 2
