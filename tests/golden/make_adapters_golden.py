#!/usr/bin/env python3
"""Writes adapters/<case>/: an adapter as peft saves it, and what its merge_and_unload makes of layer 0 and the head.

usage: make_adapters_golden.py [--output DIR] [--only CASE]
"""

import argparse
import json
import pathlib

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from make_model_golden import generator

HERE = pathlib.Path(__file__).resolve().parent

# By case: the model below model/, and what peft is asked for.
CASES = {
    "llama_lora": ("llama_gqa", dict(r=3, lora_alpha=8, target_modules="all-linear")),
    "qwen2_rslora_dora": ("qwen2", dict(r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"],
                                        use_rslora=True, use_dora=True)),
    "gpt2_lora": ("gpt2", dict(r=2, lora_alpha=3, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)),
    "gpt2_dora": ("gpt2", dict(r=2, lora_alpha=2, target_modules=["attn.c_proj"], use_dora=True,
                               fan_in_fan_out=True)),
    "llama_head_dora": ("llama_gqa", dict(r=3, lora_alpha=5, target_modules=["v_proj", "lm_head"], use_dora=True)),
    "gpt2_head": ("gpt2_untied", dict(r=2, lora_alpha=3, target_modules=["c_attn", "lm_head"], fan_in_fan_out=True)),
    "mixtral_experts": ("mixtral", dict(r=2, lora_alpha=6, target_modules=["q_proj"],
                                        target_parameters=["experts.gate_up_proj", "experts.down_proj"])),
    "gpt_oss_experts": ("gpt_oss", dict(r=3, lora_alpha=3, use_rslora=True, target_modules=[],
                                        target_parameters=["experts.gate_up_proj", "experts.down_proj"])),
    "qwen3_moe_down": ("qwen3_moe", dict(r=2, lora_alpha=4, target_modules=[],
                                         target_parameters=["mlp.experts.down_proj"])),
}


def make_case(case, output):
    model_case, asked = CASES[case]
    model = AutoModelForCausalLM.from_pretrained(HERE / "model" / model_case, dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **asked))
    with torch.no_grad():  # a new B is zero, a new length that of W: neither would show
        for name, parameter in adapted.named_parameters():
            normal = torch.randn(parameter.shape, generator=generator("adapter", case, name))
            if ".lora_A." in name or ".lora_B." in name:
                parameter.copy_(0.3 * normal)
            elif "lora_magnitude_vector" in name:
                parameter.mul_(1 + 0.2 * normal)
    folder = output / "adapters" / case
    folder.mkdir(parents=True, exist_ok=True)
    # In a committed file paths are those of the tree.
    adapted.peft_config["default"].base_model_name_or_path = f"tests/golden/model/{model_case}"
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"] = sorted(config["target_modules"])  # peft holds them in a set
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    merged = adapted.merge_and_unload().state_dict()
    changed = {name: tensor.contiguous() for name, tensor in merged.items()
               if (".0." in name or "lm_head" in name) and not torch.equal(tensor, before[name])}
    save_file(changed, folder / "merged.safetensors")
    print(case, len(changed), "weights changed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=HERE)
    parser.add_argument("--only", choices=CASES)
    arguments = parser.parse_args()
    for case in CASES:
        if arguments.only in (None, case):
            make_case(case, arguments.output)


if __name__ == "__main__":
    main()
