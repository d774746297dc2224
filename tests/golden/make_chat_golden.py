#!/usr/bin/env python3
"""Golden files of conversations: chat/chat.json, chat/packing.json, chat/{llama3,gemma}.tokenizer.json.

usage: make_chat_golden.py [--output DIR]

Texts, ids and masks are transformers' apply_chat_template with the templates that trl trains with (its package is
only read, never imported), or with OWN ones where it has none. Where trl has the model's own template too, both must
write the same conversations, or this stops.
"""

import argparse
import bisect
import collections
import importlib.util
import json
import pathlib
import random

import xxhash
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from hostile_text import fragment
from make_tokenizer_golden import fnv1a, line_of_ids

HERE = pathlib.Path(__file__).resolve().parent
TRL = pathlib.Path(importlib.util.find_spec("trl").submodule_search_locations[0]) / "chat_templates"
WHOLE = 6  # conversations whose ids are kept; of the rest a hash

TURN = "{{ '<|im_start|>' + m.role + '\n' }}"
ANSWER = "{% generation %}{{ m.content + '<|im_end|>\n' }}{% endgeneration %}"
CHATML = ("{% for m in messages %}" + TURN + "{% if m.role == 'assistant' %}" + ANSWER +
          "{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
QWEN2 = ("{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}"
         "{% endif %}" + CHATML.replace(TURN, "{{ '<|im_start|>' + m.role }}")
         .replace("m.content + '<", "'\n' + m.content + '<"))
HEADER = "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
LLAMA31 = ("{{ bos_token + '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
           "Today Date: 26 Jul 2024\n\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}"
           "{% set messages = messages[1:] %}{% endif %}{{ '<|eot_id|>' }}{% for m in messages %}" + HEADER +
           "{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim + '<|eot_id|>' }}{% endgeneration %}"
           "{% else %}{{ m.content | trim + '<|eot_id|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}"
           "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
MISTRAL = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
           "{% else %}{% generation %}{{ m.content + eos_token }}{% endgeneration %}{% endif %}{% endfor %}")
MISTRAL_V3 = ("{{ bos_token }}{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}"
              "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{% for m in messages %}"
              "{% if m.role == 'user' %}{{ '[INST] ' + (system if loop.last else '') + m.content + '[/INST]' }}"
              "{% else %}{% generation %}{{ ' ' + m.content | trim + eos_token }}{% endgeneration %}{% endif %}"
              "{% endfor %}")
OWN = {"chatml": CHATML, "qwen2": QWEN2, "llama3.1": LLAMA31, "mistral": MISTRAL, "mistral-v3": MISTRAL_V3}
# Ours -> (trl's for training, templates that models have).
OF_TRL = {"chatml": ("qwen3_instruct_2507_training", ["qwen3_instruct_2507"]), "llama3": ("llama3_training", ["llama3"]),
          "llama3.1": (None, ["llama3_1"]), "qwen2.5": ("qwen2_5_training", ["qwen2_5"]),
          "qwen3": ("qwen3_training", ["qwen3"]), "gemma": ("gemma_training", ["gemma"]),
          "gemma3": ("gemma3_training", ["gemma3"])}
# Template, tokenizer, roles of its conversations, tokens that begin and end a text.
CASES = [("chatml", "tokenizer/qwen", "free", "", "<|endoftext|>"), ("chatml", "tokenizer/gpt2", "free", "", "<|endoftext|>"),
         ("llama3", "chat/llama3", "free", "<|begin_of_text|>", "<|eot_id|>"),
         ("llama3.1", "chat/llama3", "free", "<|begin_of_text|>", "<|eot_id|>"),
         ("qwen2", "tokenizer/qwen", "free", "", "<|im_end|>"), ("qwen2.5", "tokenizer/qwen", "free", "", "<|im_end|>"),
         ("qwen3", "tokenizer/qwen", "thoughts", "", "<|im_end|>"), ("gemma", "chat/gemma", "turns", "<bos>", "<eos>"),
         ("gemma3", "chat/gemma", "system", "<bos>", "<eos>"), ("mistral", "tokenizer/llama2", "turns", "<s>", "</s>"),
         ("mistral", "tokenizer/llama2_normalized", "turns", "<s>", "</s>"),
         ("mistral-v3", "tokenizer/mistral", "turns", "<s>", "</s>")]


def trl_template(name):
    return (TRL / f"{name}.jinja").read_text(encoding="utf-8")


def training_template(name):
    trained = OF_TRL.get(name, (None,))[0]
    return OWN.get(name) or trl_template(trained)


def template_hash(jinja):
    return xxhash.xxh3_128_hexdigest(jinja.replace("\\n", "\n").replace("\r", "").rstrip(" \t\n").encode())


def text(rng):
    parts = [fragment(rng) for _ in range(rng.randint(0, 4))]
    edge = rng.choice(["", "", "", "\n", " ", "\n\n", "\u00a0\u3000", "\u0301", "\t\x1f"])
    return edge + "".join(parts) + rng.choice(["", "", edge, "\n"])


def thought(rng, message):
    kind = rng.randrange(6)
    if kind == 0:
        message["content"] = "<think>\n" + text(rng) + "\n</think>\n\n" + message["content"]
    elif kind == 1:
        message["reasoning_content"] = rng.choice(["", "\n", text(rng)])
    elif kind == 2:
        message["content"] = text(rng) + "</think>" + text(rng) + "</think>\n" + message["content"]


def conversation(rng, roles):
    messages = []
    if roles in ("free", "thoughts", "system") and rng.random() < 0.5:
        messages.append({"role": "system", "content": text(rng)})
    for i in range(rng.randint(1, 5)):
        role = "user" if i % 2 == 0 else "assistant"
        if roles in ("free", "thoughts") and rng.random() < 0.2:
            role = rng.choice(["system", "user", "assistant"])
        messages.append({"role": role, "content": text(rng)})
        if roles == "thoughts" and role == "assistant":
            thought(rng, messages[-1])
    return messages


def conversations(roles, count):
    rng = random.Random(f"chat {roles}")
    return [conversation(rng, roles) for _ in range(count)]


def asked(messages, roles):
    """The same up to the user's last message; one more where that is none."""
    while messages and messages[-1]["role"] != "user":
        messages = messages[:-1]
    question = {"role": "user", "content": "Why?"}
    system = [m for m in messages if roles == "system" and m["role"] == "system"]
    return messages or system + [question]


def with_tokens(source, tokens):
    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer" / f"{source}.tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
    return tokenizer


def case(name, path, roles, bos, eos, output):
    folder, file = path.split("/")
    source = (output if folder == "chat" else HERE / folder) / f"{file}.tokenizer.json"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(str(source)), eos_token=eos,
                                        **({"bos_token": bos} if bos else {}))
    template, originals = training_template(name), [trl_template(n) for n in OF_TRL.get(name, (None, []))[1]]
    trained = OF_TRL.get(name, (None, []))[0]
    ids, masks, hashes, prompts = [], [], [], []
    for messages in conversations(roles, 40):
        made = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=True, return_dict=True,
                                             return_assistant_tokens_mask=True)
        if trained and name in OWN:
            other = tokenizer.apply_chat_template(messages, chat_template=trl_template(trained), tokenize=True,
                                                  return_dict=True, return_assistant_tokens_mask=True)
            assert other["input_ids"] == made["input_ids"] and other["assistant_masks"] == made["assistant_masks"], name
        ids.append(made["input_ids"])
        masks.append("".join(map(str, made["assistant_masks"])))
        hashes.append(f"{fnv1a(line_of_ids(ids[-1]) + masks[-1].encode()):08x}")
        rendered = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
        question = asked(messages, roles)
        prompts.append(tokenizer.apply_chat_template(question, chat_template=originals[0] if originals else template,
                                                     tokenize=False, add_generation_prompt=True))
        for original in originals:
            if name == "qwen3":  # thoughts of old turns are what the two differ in
                continue
            assert tokenizer.apply_chat_template(messages, chat_template=original, tokenize=False) == rendered, name
    return {"template": name, "tokenizer": path, "roles": roles, "bos": bos, "eos": eos, "ids": ids[:WHOLE],
            "masks": masks[:WHOLE], "hashes": hashes, "prompts": prompts}


def best_fit(lengths, capacity):
    """trl's packing "bfd", written out: by descending length into the fullest bin with room, first in first out."""
    bins, free, waiting = [], [], collections.defaultdict(collections.deque)
    for document in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[document]
        at = bisect.bisect_left(free, length)
        if at == len(free):
            bins.append([])
            number, room = len(bins) - 1, capacity
        else:
            room = free[at]
            number = waiting[room].popleft()
            if not waiting[room]:
                free.pop(at)
        bins[number].append(document)
        left = room - length
        if left > 0:
            if not waiting[left]:
                bisect.insort(free, left)
            waiting[left].append(number)
    return bins


def packing_cases():
    rng = random.Random("packing")
    made = []
    for count, capacity, longest in ((0, 8, 8), (1, 8, 8), (9, 8, 3), (40, 16, 16), (200, 64, 40), (300, 100, 100)):
        lengths = [rng.randint(1, longest) for _ in range(count)]
        made.append({"capacity": capacity, "lengths": lengths, "bins": best_fit(lengths, capacity)})
    return made


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


def known_hashes(name):
    """Of the templates that are taken for ours; qwen3's for training keeps old thoughts in a prompt too."""
    trained, originals = OF_TRL.get(name, (None, []))
    of_trl = originals + ([trained] if trained and trained != "qwen3_training" else [])
    return [template_hash(jinja) for jinja in
            ([OWN[name]] if name in OWN else []) + [trl_template(stem) for stem in of_trl]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "chat")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    for name, source, tokens in (("llama3", "llama3", ["<|start_header_id|>", "<|end_header_id|>"]),
                                 ("gemma", "gemma", ["<start_of_turn>", "<end_of_turn>"])):
        (output / f"{name}.tokenizer.json").write_text(with_tokens(source, tokens).to_str() + "\n", encoding="utf-8")
    hashes = {name: known_hashes(name) for name in dict.fromkeys(list(OWN) + list(OF_TRL))}
    write(output / "chat.json", {
        "conversations": {roles: conversations(roles, 40) for roles in ("free", "thoughts", "turns", "system")},
        "templates": OWN, "hashes": hashes, "cases": [case(*one, output) for one in CASES]})
    write(output / "packing.json", packing_cases())


if __name__ == "__main__":
    main()
