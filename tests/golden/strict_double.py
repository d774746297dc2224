"""transformers in float64 throughout.

The library casts to float32 inside a float64 model: RMS norm, the rotary tables, the softmax of the
Llama families and the loss. Inside `strict_double()` every such request gets float64, so that a golden
value is exact to about 1e-15 and an error of 1e-7 in the program under test cannot hide behind it.
"""

import contextlib

import torch
from torch.overrides import TorchFunctionMode


def _widen(value):
    return torch.float64 if value is torch.float32 else value


class _KeepDouble(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        arguments = [_widen(value) for value in args]
        named = {key: _widen(value) for key, value in (kwargs or {}).items()}
        return function(*arguments, **named)


@contextlib.contextmanager
def strict_double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _KeepDouble():
            yield
    finally:
        torch.set_default_dtype(before)


def build_double(config, state):
    """The model of `config` in float64 with the fp32 weights `state`; call it under strict_double()."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.set_experts_implementation("eager")
    model.double().eval()
    model.load_state_dict({name: tensor.double() for name, tensor in state.items()})
    # The lines below are what makes this an oracle: nothing may have stayed at float32.
    for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
        assert tensor.dtype != torch.float32, name
    return model
