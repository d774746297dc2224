"""Small byte-level BPE tokenizers with the pre-tokenizers that published models use."""
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
            r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(use_regex=False, add_prefix_space=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)


def sequence(*steps):
    return pre_tokenizers.Sequence(list(steps))


def special(text, **flags):
    return AddedToken(text, special=True, normalized=False, **flags)


def train(pre_tokenizer, lines, size, tokens=("<|endoftext|>",), normalizer=None, model=None):
    tokenizer = Tokenizer(models.BPE(**(model or {})))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(tokens), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def variants(lines, size=600):
    """{name: Tokenizer}"""
    made = {}
    made["gpt2"] = train(byte_level(use_regex=True), lines, size)
    made["gpt2"].post_processor = processors.ByteLevel(trim_offsets=False)

    llama = train(sequence(split(LLAMA3), byte_level()), lines, size, tokens=(), model={"ignore_merges": True})
    llama.add_special_tokens([special(t) for t in ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")])
    llama.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", llama.token_to_id("<|begin_of_text|>"))])
    made["llama3"] = llama

    qwen = train(sequence(split(QWEN), byte_level()), lines, size, tokens=(), normalizer=normalizers.NFC())
    qwen.add_special_tokens([special(t) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    qwen.add_tokens([AddedToken("<tool_call>", special=False, normalized=False),
                     AddedToken("caf\u0065\u0301", special=False, normalized=True)])
    made["qwen"] = qwen

    roberta = train(byte_level(use_regex=True, add_prefix_space=True), lines, size, tokens=("<s>", "</s>", "<unk>"),
                    model={"unk_token": "<unk>"})
    roberta.add_special_tokens([special("<mask>", lstrip=True), special("word", single_word=True),
                                special("</tool_call>", rstrip=True, lstrip=True)])
    made["roberta"] = roberta

    made["digits"] = train(sequence(pre_tokenizers.Digits(individual_digits=True), byte_level(use_regex=True)), lines, size)
    made["o200k"] = train(sequence(split(O200K, "removed", True), byte_level()), lines, size)
    made["deepseek"] = train(sequence(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK), byte_level()), lines, size)
    made["merged"] = train(
        sequence(pre_tokenizers.Split("the", "merged_with_next"), split(r"[\r\n]+|\p{P}", "merged_with_previous"),
                 split(r"\s", "contiguous"), pre_tokenizers.Digits(individual_digits=False),
                 split(r"\p{Lu}?", "isolated"), byte_level(add_prefix_space=True)), lines, size)
    return made
