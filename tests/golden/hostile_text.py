"""Lines that break tokenizers: deterministic for a seed; used by the golden files and the live comparison."""
import random

WORDS = ("the of and in to that he shall unto for his a lord they be is him not them it with all thou thy was god "
         "which my me said but ye their have will thee from as are when this out were by upon man you king son "
         "people there hath then house into your before also children day land men let go hand us saying made went "
         "even do now behold saith therefore every these because our or after down things father may earth "
         "tokenizer gradient transformer don't it's we're I'll they've he'd I'm can't CAN'T IT'S WE'RE").split()
SPACES = " \t\n\r\v\f\u0085\u00a0\u1680\u180e\u2000\u2003\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
RANGES = [(0x20, 0x7E), (0xA0, 0x17F), (0x180, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F),
          (0x590, 0x5FF), (0x600, 0x6FF), (0x700, 0x8FF), (0x900, 0x97F), (0xB80, 0xBFF), (0xE00, 0xE7F),
          (0xF00, 0xFFF), (0x1100, 0x11FF), (0x1AB0, 0x1AFF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F),
          (0x2190, 0x2BFF), (0x3000, 0x30FF), (0x3130, 0x318F), (0x4E00, 0x9FFF), (0xA640, 0xA7FF), (0xAC00, 0xD7A3),
          (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFE00, 0xFFFF), (0x10000, 0x105FF), (0x11000, 0x116FF),
          (0x16A00, 0x16FFF), (0x1D000, 0x1D7FF), (0x1E000, 0x1EFFF), (0x1F000, 0x1FAFF), (0x1F1E6, 0x1F1FF),
          (0x20000, 0x20100), (0x2F800, 0x2FA1F), (0x30000, 0x323AF), (0xE0000, 0xE01EF), (0xF0000, 0xF0010),
          (0x10FFF0, 0x10FFFF)]
EMOJI = ["😀", "👩‍👩‍👧‍👦", "👍🏽", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🇩🇪🇫🇷", "❤️‍🔥", "1️⃣", "☃", "🤷🏿‍♀️", "🪿"]
SPECIALS = ["<|endoftext|>", "<|endoftext|", "<|end_of_text|>", "<|im_start|>", "<|im_end|>", "<mask>", " <mask> ",
            "<mask>\n\n<mask>", "word", "words", " word ", "<unk>", "<tool_call>", "</tool_call>", "caf\u0065\u0301",
            "café", "<|<|endoftext|>|>", "<|begin_of_text|>", "<s>", "</s>", "<|endoftext|><|endoftext|>"]
CONTRACTIONS = ["'s", "'S", "'t", "'re", "'RE", "'ve", "'m", "'ll", "'LL", "'d", "'\u017f", "\u2019s", "''s", "'ſt",
                "'l", "'v", "'r", "'\u212a", "'ﬀ", "'sS", "'reX"]
DIGITS = ["0", "1234567890", "3.14159", "1,000,000", "٠١٢٣", "०१२", "Ⅷ", "½", "²³", "𝟘𝟙𝟚", "௧௨", "①②", "1e-5", "0x1F"]
CODE = ["def f(x):\n\treturn x\n", "    if (a != b) {\r\n", "}\n\n\n", "/* ** */", "#include <vector>\n", "a_b__c", "-->",
        "https://example.org/a?b=c&d=%20", "<div class='x'>", "$x^2_{i}$", "\\n\\t", "=====", "----", "...", "!!!", "?!?!"]


def any_character(rng):
    while True:
        point = rng.randrange(0x110000)
        if not 0xD800 <= point < 0xE000:
            return chr(point)


def from_range(rng):
    first, last = rng.choice(RANGES)
    return [chr(rng.randint(first, last)) for _ in range(rng.randint(1, 6))]


def fragment(rng):
    kind = rng.randrange(16)
    if kind < 4:
        return rng.choice(["", " ", " ", "  "]) + rng.choice(WORDS)
    if kind == 4:
        return rng.choice(WORDS).title() + rng.choice(CONTRACTIONS)
    if kind == 5:
        return "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 5)))
    if kind == 6:
        return rng.choice(" \n\t") * rng.randint(1, 12)
    if kind == 7:
        return rng.choice(["\n", "\r\n", "\r", "\n\n", " \n", "\n ", " \r\n ", "\t\n"]) * rng.randint(1, 3)
    if kind == 8:
        return rng.choice(DIGITS)
    if kind == 9:
        return rng.choice(EMOJI)
    if kind == 10:
        return rng.choice(SPECIALS)
    if kind == 11:
        return rng.choice(CODE)
    if kind == 12:
        base = rng.choice("aeouAEnsy\u0905\u05d0\u0438\uac00\u1100")
        return base + "".join(chr(rng.choice([0x300, 0x301, 0x308, 0x323, 0x327, 0x338, 0x345, 0x5B0, 0x93C, 0x1161,
                                              0x11A8, 0x3099, 0x898, 0x1DF6, 0xECE])) for _ in range(rng.randint(1, 4)))
    if kind == 13:
        return any_character(rng)
    if kind == 14:
        return "".join(chr(rng.choice([rng.randrange(32), 127, 0x80 + rng.randrange(32)])) for _ in range(2))
    return "".join(from_range(rng))


def hostile_lines(seed, count, fragments_max=8):
    rng = random.Random(seed)
    lines = ["", " ", "\n", "\u0000", "a", "\ufeffBOM", "  leading", "trailing  ", "\n" * 40, " " * 300, "a" * 400,
             "ab" * 200, "!" * 200, "\u0301" * 60, "😀" * 40, "中文" * 60, " a" * 100, "1" * 100, "\t \t" * 50]
    while len(lines) < count:
        lines.append("".join(fragment(rng) for _ in range(rng.randint(1, fragments_max))))
    return lines[:count]


def training_lines(seed, count):
    rng = random.Random(seed)
    lines = []
    for _ in range(count):
        words = [rng.choice(WORDS) for _ in range(rng.randint(3, 14))]
        if rng.random() < 0.3:
            words.insert(rng.randrange(len(words)), rng.choice(DIGITS + EMOJI + CODE + CONTRACTIONS))
        lines.append(" ".join(words).capitalize() + rng.choice([".", "!", "?", ";", ".\n", " "]))
    return lines + hostile_lines(seed, count // 10)
