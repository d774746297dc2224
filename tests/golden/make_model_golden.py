#!/usr/bin/env python3
"""Writes model/<case>/: a Hugging Face directory, a batch, and loss, logits and gradients in float64.

usage: make_model_golden.py [--output DIR] [--only CASE]
"""

import argparse
import hashlib
import json
import pathlib
import tempfile

import torch
from safetensors.torch import load_file, save_file

from transformers.utils.logging import disable_progress_bar

from cases import BATCH, MASKED_CASES, TOKENS, VOCAB, cases
from strict_double import build_double, strict_double

HERE = pathlib.Path(__file__).resolve().parent
NO_GRADIENT = "e_score_correction_bias"


def generator(*key):
    """A stream of its own for every (purpose, case, tensor): adding a case changes no other."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))


def initial_value(case, name, shape, gemma=False):
    normal = torch.randn(shape, generator=generator("weight", case, name), dtype=torch.float64)
    if name.endswith((".bias", "_bias")):
        value = 0.2 * normal
    elif len(shape) == 1:  # norm weights
        value = 0.3 * normal + (0 if gemma else 1)
    elif "embed_tokens" in name or ".wte." in name or ".wpe." in name:
        value = (0.1 if gemma else 0.4) * normal  # Gemma's are scaled when they are looked up
    else:
        conv1d = ".c_attn." in name or ".c_proj." in name or ".c_fc." in name
        value = normal / (shape[0] if conv1d else shape[-1]) ** 0.5
    return value.float()


def random_ids(*key, count=BATCH, length=TOKENS):
    return torch.randint(0, VOCAB, (count, length), generator=generator("ids", *key))


def make_batch(case):
    stream = random_ids(case, length=TOKENS + 1)
    ids, targets = stream[:, :-1].clone(), stream[:, 1:].clone()
    if case in MASKED_CASES:
        masked = torch.rand(targets.shape, generator=generator("mask", case)) < 0.3
        masked[1, 20:] = True  # the end of a row, as padding leaves it
        targets[masked] = -100
    return ids, targets


def make_state(case, config):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config)
    state = {}
    for name, parameter in model.named_parameters():  # a tied head does not appear
        gemma = config.model_type.startswith("gemma")
        state[name] = initial_value(case, name, tuple(parameter.shape), gemma)
    for name, buffer in model.named_buffers():
        if name.endswith(NO_GRADIENT):  # large enough to change what is chosen
            normal = torch.randn(buffer.shape, generator=generator("weight", case, name), dtype=torch.float64)
            state[name] = (0.1 * normal).float()
    missing = model.load_state_dict(state, strict=False).missing_keys
    assert all(name == "lm_head.weight" and config.tie_word_embeddings for name in missing), missing
    model.tie_weights()
    return model, {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def load_case(case):
    """Config and fp32 weights of a committed case. Not under strict_double(): it would widen the read."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(HERE / "model" / case, dtype=torch.float32)
    return model.config, model.state_dict()


def loss_and_gradients(model, ids, targets, **inputs):
    """Mean over unmasked targets; targets are already shifted."""
    model.zero_grad()
    logits = model(input_ids=ids, use_cache=False, **inputs).logits
    loss = torch.nn.functional.cross_entropy(
        logits.reshape(-1, VOCAB), targets.reshape(-1), ignore_index=-100)
    loss.backward()
    gradients = {name: p.grad.detach().clone() for name, p in model.named_parameters()}
    return logits.detach(), loss.item(), gradients


def fp32_errors(config, state, ids, targets, expected, **inputs):
    """How far PyTorch itself in fp32 stays from the golden: the worst tensor, as a yardstick."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.float().eval()
    model.load_state_dict(state)
    _, loss, gradients = loss_and_gradients(model, ids, targets, **inputs)
    all_norm = sum(g.double().square().sum() for g in expected.values()).sqrt()
    worst = max(
        (((gradients[n].double() - g).norm() / (5e-6 * g.norm() + 1e-9 * all_norm)).item(), n)
        for n, g in expected.items())
    return loss, worst


def write_json(path, value):
    path.write_text(json.dumps(value, separators=(",", ":")) + "\n")


def as_on_disk(config, tensors):
    """fp32 tensors by the names of files: in memory the library holds all experts of a layer in one tensor."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config).float()
    left = model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, strict=False)
    missing = {name for name in left.missing_keys if not name.endswith(NO_GRADIENT)}
    assert not left.unexpected_keys and missing <= {"lm_head.weight"}, left
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        disk = load_file(pathlib.Path(folder) / "model.safetensors")
    return {name: tensor for name, tensor in disk.items() if not name.endswith(NO_GRADIENT)}


def write_expected(folder, config, logits, loss, gradients):
    tensors = as_on_disk(config, gradients)
    tensors["logits"] = logits[:, -2:, :].contiguous()
    save_file(tensors, folder / "expected.safetensors")
    norm = sum(g.square().sum() for g in gradients.values()).sqrt().item()
    write_json(folder / "expected.json", {"loss": loss, "gradient_norm": norm})


def make_case(root, case, config):
    folder = root / case
    folder.mkdir(parents=True, exist_ok=True)
    model, state = make_state(case, config)
    model.float().save_pretrained(folder)
    ids, targets = make_batch(case)
    write_json(folder / "batch.json", {"input_ids": ids.tolist(), "targets": targets.tolist()})
    with strict_double():
        double = build_double(config, state)
        logits, loss, gradients = loss_and_gradients(double, ids, targets)
    write_expected(folder, config, logits, loss, gradients)
    fp32_loss, worst = fp32_errors(config, state, ids, targets, gradients)
    print(f"{case:26} loss {loss:.15f}  fp32 off by {abs(fp32_loss - loss) / loss:.1e}; "
          f"worst gradient at {worst[0]:.2f} of the tolerance ({worst[1]})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "model")
    parser.add_argument("--only")
    arguments = parser.parse_args()
    for case, config in cases().items():
        if arguments.only in (None, case):
            make_case(arguments.output, case, config)


if __name__ == "__main__":
    torch.set_num_threads(1)
    disable_progress_bar()
    main()
