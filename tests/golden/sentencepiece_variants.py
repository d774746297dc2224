"""Small BPE tokenizers over characters, in the forms in which Llama 2, Mistral and Gemma are published."""
import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

MARK = "▁"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def learn(lines, size, tokens, words_apart=True, alphabet=90):
    """A vocabulary in order of ids: `tokens`, characters, merged tokens. Rare characters have none."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", MARK)
    if words_apart:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always", split=True)
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(tokens), show_progress=False, limit_alphabet=alphabet))
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.get)


def every_way(vocabulary, first):
    """Merges as converters from SentencePiece write them: each token from every pair that makes it, best token first."""
    known = set(vocabulary)
    return [(token[:i], token[i:]) for token in vocabulary[first:] for i in range(1, len(token))
            if token[:i] in known and token[i:] in known]


def build(vocabulary, tokens, normalizer=None, pre_tokenizer=None, decoder=None, added=(), **options):
    ids = {token: i for i, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=every_way(vocabulary, len(tokens)), unk_token="<unk>", **options))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    return tokenizer


def special(text, **flags):
    return AddedToken(text, special=True, **{"normalized": False, **flags})


def strip_first():
    return decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                              decoders.Strip(" ", 1, 0)])


def sentencepiece_variants(lines, size=640):
    """{name: Tokenizer}"""
    made = {}
    control = ["<unk>", "<s>", "</s>"]
    tokens = control + BYTES
    vocabulary = learn(lines, size, tokens)
    fallback = {"byte_fallback": True, "fuse_unk": True}
    controls = [special(token) for token in control]

    legacy = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    made["llama2"] = build(vocabulary, tokens, legacy, None, strip_first(), controls, **fallback)
    made["llama2"].post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])

    # An early form: the special tokens are looked for in normalized text.
    made["llama2_normalized"] = build(
        vocabulary, tokens, legacy, None, strip_first(),
        [special(token, normalized=True) for token in control] + [AddedToken("word", normalized=True, single_word=True)],
        **fallback)

    instruct = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    made["mistral"] = build(
        learn(lines, size, instruct + BYTES), instruct + BYTES, None,
        pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first", split=False), strip_first(),
        [special(token) for token in instruct], ignore_merges=True, **fallback)

    gemma = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "\n\n", "\n\n\n", MARK * 2, MARK * 3, "<s>", "</s>"] + BYTES
    made["gemma"] = build(
        learn(lines, size, gemma), gemma, normalizers.Replace(" ", MARK),
        pre_tokenizers.Split(" ", "merged_with_previous"),
        decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]),
        [special(token) for token in gemma[:4]] +
        [AddedToken(token, normalized=False, special=False) for token in gemma[4:11]], **fallback)

    # Without bytes, unknown characters one by one; white space around added tokens.
    made["metaspace"] = build(
        learn(lines, size - 256, control), control, normalizers.NFC(),
        pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always", split=True),
        decoders.Metaspace(replacement=MARK, prepend_scheme="always", split=True),
        controls + [special("<mask>", lstrip=True), special("</tool_call>", lstrip=True, rstrip=True),
                    AddedToken("caf\u0065\u0301", normalized=True), AddedToken("word", single_word=True)])

    # Tokens that begin in one word and end in the next, and bytes of which some have no token.
    some = control + [token for i, token in enumerate(BYTES) if i % 16 != 9]
    made["crossing"] = build(
        learn(lines, size, some, words_apart=False), some,
        normalizers.Sequence([normalizers.Replace(Regex(r"[\t ]{2,}|\p{Sc}"), "  "), normalizers.Replace(" ", MARK)]),
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                 pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first", split=False)]),
        None, controls, **fallback)
    return {name: without_nulls(tokenizer) for name, tokenizer in made.items()}


def without_nulls(tokenizer):
    """As the file has it: what a file cannot say must not decide."""
    return Tokenizer.from_str(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False))
