#!/usr/bin/env python3
"""Writes moments/tensors.safetensors: parameters and 8-bit moments that bitsandbytes' optimizers make on a CPU.

map.signed, map.unsigned: create_dynamic_map. Of a case: its section `optimizer` in moments/cases.json, CASE.parameter
(before), CASE.gradient.T of update T, CASE.final, and of exp_avg and exp_avg_sq CASE.STATE.codes and .absmax at the end.
Cases named nearest have codes by the package's own quantiser for devices without one, which finds the nearest value of
the map; its CPU looks a code up in 65,536 even cells.

usage: make_moments_golden.py [--output DIR]
"""

import argparse
import inspect
import pathlib

import bitsandbytes
import torch
from bitsandbytes.backends.cpu import ops as cpu
from bitsandbytes.backends.default import ops as default
from bitsandbytes.functional import create_dynamic_map
from safetensors.torch import save_file

from make_model_golden import generator, write_json

HERE = pathlib.Path(__file__).resolve().parent
UPDATES = 3
SHAPE = [37, 113]  # rows that are no blocks, a last block that is shorter
ADAMW = {"lr": 1e-2, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
LION = {"lr": 1e-3, "betas": [0.9, 0.99], "weight_decay": 0.3}
# case -> kind, section, decades that the gradients of rows are apart
CASES = {
    "adamw": ("adamw", ADAMW, 0.5),
    "adamw_nearest": ("adamw", ADAMW, 3),
    "lion": ("lion", LION, 0.5),
    "lion_nearest": ("lion", LION, 3),
}


def nearest(x, code, absmax_out, codes_out, blocksize):
    codes, absmax = QUANTIZE_DEFAULT(x, code, blocksize)
    codes_out.copy_(codes)
    absmax_out.copy_(absmax)


def default_quantiser():
    """Registered without a name: taken from its source."""
    source = inspect.getsource(default)
    source = source[source.index('"bitsandbytes::quantize_blockwise"'):]
    source = source[source.index("def _("):]
    space = dict(vars(default))
    exec(source[:source.index("\n\n\n")], space)
    return space["_"]


QUANTIZE_DEFAULT = default_quantiser()


def run(case, tensors):
    kind, section, decades = CASES[case]
    parameter = torch.nn.Parameter(torch.randn(SHAPE, generator=generator("moments", case)))
    make = {"adamw": bitsandbytes.optim.AdamW8bit, "lion": bitsandbytes.optim.Lion8bit}[kind]
    arguments = {key: value for key, value in section.items() if key != "betas"}
    optimizer = make([parameter], betas=tuple(section["betas"]), **arguments)
    tensors[f"{case}.parameter"] = parameter.detach().clone()
    for t in range(1, UPDATES + 1):
        scales = 10 ** (-decades * torch.rand(SHAPE[0], 1, generator=generator("moments", case, "scales", t)))
        parameter.grad = scales * torch.randn(SHAPE, generator=generator("moments", case, t))
        tensors[f"{case}.gradient.{t}"] = parameter.grad.clone()
        optimizer.step()
    tensors[f"{case}.final"] = parameter.detach().clone()
    state = optimizer.state[parameter]
    for name, codes, absmax in (("exp_avg", "state1", "absmax1"), ("exp_avg_sq", "state2", "absmax2")):
        if codes not in state:
            continue
        tensors[f"{case}.{name}.codes"] = state[codes].float()
        tensors[f"{case}.{name}.absmax"] = state[absmax].clone()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=HERE)
    output = parser.parse_args().output / "moments"
    output.mkdir(parents=True, exist_ok=True)
    tensors = {"map.signed": create_dynamic_map(True), "map.unsigned": create_dynamic_map(False)}
    own = cpu._quant_blockwise_fp32_direct
    for case in CASES:
        cpu._quant_blockwise_fp32_direct = nearest if case.endswith("nearest") else own
        run(case, tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, output / "tensors.safetensors")
    write_json(output / "cases.json", {case: {"kind": kind, **section} for case, (kind, section, _) in CASES.items()})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
