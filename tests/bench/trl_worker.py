#!/usr/bin/env python3
"""peft's and trl's side of fine_tuning_beside_trl.py: does one after the other what the JSON on standard input asks.

make    a model of random weights with its tokenizer, peft's adapters as it begins them, and with "quantized" the
        weights that bitsandbytes' NF4 codes mean.
train   trl's SFTTrainer on conversations: the loss, gradient norm and seconds of each step, what it packed.
loss    of a folder of adapters beside its base, over what trl packs, as the mean over targets that count.

Needs torch, transformers, datasets, peft, trl, bitsandbytes.
"""

import json
import math
import os
import pathlib
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import trl
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, TrainerCallback

TEMPLATES = pathlib.Path(trl.__file__).parent / "chat_templates"


def resident(field):
    """Bytes of this process."""
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def model_from(folder, quantized=False):
    keys = {"dtype": torch.float32, "attn_implementation": "sdpa"}
    if quantized:
        keys["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32,
            bnb_4bit_use_double_quant=False)
    return AutoModelForCausalLM.from_pretrained(folder, **keys)


def adapters_of(request):
    return LoraConfig(r=request["rank"], lora_alpha=request["alpha"], target_modules=request["targets"],
                      use_rslora=request["kind"] == "rslora", use_dora=request["kind"] == "dora", lora_dropout=0.0,
                      task_type="CAUSAL_LM")


def write_tokenizer(folder, source, tokens, template):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(pathlib.Path(source).read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({**tokens, "tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "chat_template.jinja").write_bytes((TEMPLATES / f"{template}.jinja").read_bytes())


def make(request):
    folder = pathlib.Path(request["folder"])
    torch.manual_seed(request["seed"])
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**request["model"])).save_pretrained(folder / "model")
    write_tokenizer(folder / "model", request["tokenizer"], request["tokens"], request["template"])
    for kind in request["starts"]:
        model = get_peft_model(model_from(folder / "model"), adapters_of({**request, "kind": kind}))
        model.save_pretrained(folder / f"start_{kind}")
    if request["quantized"]:
        write_dequantized(folder / "model", folder / "dequantized")
    return {}


def write_dequantized(source, target):
    from bitsandbytes.functional import dequantize_4bit

    plain, coded = model_from(source), dict(model_from(source, quantized=True).named_modules())
    for name, module in plain.named_modules():
        weight = getattr(coded.get(name), "weight", None)
        if getattr(weight, "quant_state", None) is not None:
            module.weight.data = dequantize_4bit(weight.data, weight.quant_state).reshape(module.weight.shape)
    plain.save_pretrained(target)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (target / name).write_bytes((source / name).read_bytes())


class Clock(TrainerCallback):
    def __init__(self):
        self.ends = []

    def on_step_end(self, *_arguments, **_keys):
        self.ends.append(time.perf_counter())


def model_to_train(request):
    model = model_from(request["model"], request["kind"] == "qlora")
    if request["kind"] == "full":
        return model
    model = PeftModel.from_pretrained(model, request["start"], is_trainable=True)
    # trl rounds adapters beside a quantized base to bf16: here both sides have them in fp32.
    model.base_model.model.is_loaded_in_4bit = False
    return model


def rate_at(request, k):
    """Of the k-th update, k = 1, 2, ..."""
    warmup, steps, least = request["warmup"], request["steps"], request["min_lr"]
    if k <= warmup:
        return request["lr"] * k / warmup
    return least + (request["lr"] - least) * (1 + math.cos(math.pi * (k - warmup) / (steps - warmup))) / 2


def optimizer_of(model, request):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in trained if p.dim() >= 2], "weight_decay": request["weight_decay"]},
         {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0}],
        lr=request["lr"], betas=tuple(request["betas"]), eps=request["eps"])
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: rate_at(request, k + 1) / request["lr"])


def conversations(path):
    return Dataset.from_list([json.loads(line) for line in open(path, encoding="utf-8")])


def trainer_of(model, request, clock):
    arguments = trl.SFTConfig(
        output_dir=request["folder"], max_steps=request["steps"], per_device_train_batch_size=request["micro"],
        gradient_accumulation_steps=request["accumulation"], max_grad_norm=request["clip"], use_cpu=True, bf16=False,
        max_length=request["sequence"], packing=True, packing_strategy="bfd", assistant_only_loss=True,
        gradient_checkpointing=request["checkpointing"], train_sampling_strategy="sequential", logging_steps=1,
        logging_strategy="steps", save_strategy="no", report_to="none", disable_tqdm=True, dataloader_num_workers=0)
    return trl.SFTTrainer(
        model=model, args=arguments, train_dataset=conversations(request["conversations"]),
        processing_class=AutoTokenizer.from_pretrained(request["model"]), callbacks=[clock],
        optimizers=optimizer_of(model, request))


def packed(trainer):
    """Ids, lengths of documents and which tokens count, by window, as the model sees them."""
    windows = []
    for row in trainer.train_dataset:
        batch = trainer.data_collator([row])
        windows.append({"ids": row["input_ids"], "lengths": row["seq_lengths"],
                        "counts": [int(label != -100) for label in batch["labels"][0].tolist()]})
    return windows


def train(request):
    imported = resident("VmRSS")
    clock = Clock()
    model = model_to_train(request)
    trainer = trainer_of(model, request, clock)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    lengths = [len(row["input_ids"]) for row in trainer.train_dataset]
    batch = request["micro"] * request["accumulation"]
    answer = {"losses": [entry["loss"] for entry in logs], "norms": [entry["grad_norm"] for entry in logs],
              "rates": [entry["learning_rate"] for entry in logs], "imported_bytes": imported,
              "peak_bytes": resident("VmHWM"),
              "step_tokens": [sum(lengths[k * batch:(k + 1) * batch]) for k in range(request["steps"])],
              "seconds": [b - a for a, b in zip(clock.ends, clock.ends[1:])]}
    if request.get("windows"):
        answer["windows"] = packed(trainer)
    if request.get("save"):
        trainer.save_model(request["save"])
    return answer


def loss(request):
    model = PeftModel.from_pretrained(model_from(request["base"]), request["adapter"], is_trainable=True)
    trainer = trainer_of(model, request, Clock())
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for row in trainer.train_dataset:
            batch = trainer.data_collator([row])
            targets = batch["labels"][0, 1:]
            logits = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits[0, :-1]
            total += torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum").item()
            count += int((targets != -100).sum())
    return {"loss": total / count, "targets": count}


def versions():
    import bitsandbytes
    import peft
    import transformers

    return {module.__name__: module.__version__ for module in (torch, transformers, peft, trl, bitsandbytes)}


def main():
    work = json.load(sys.stdin)
    torch.set_num_threads(work["threads"])
    actions = {"make": make, "train": train, "loss": loss}
    answers = [actions[request["action"]](request) for request in work["requests"]]
    pathlib.Path(work["answers"]).write_text(json.dumps({"answers": answers, "versions": versions()}))


if __name__ == "__main__":
    main()
