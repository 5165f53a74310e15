"""The C++ tokenizer against PyPI tiktoken and tokenizers: the same ids on several megabytes of text
of every kind, the same text back, and Kimi's own cuts of very long input."""
import itertools
import json
import os
import pathlib
import random
import time
import unicodedata

import pytest

import tokenizer_oracles as oracles

SEED = 20240817
MEGABYTE = 1_000_000


def blocks(*ranges):
    return [chr(c) for low, high in ranges for c in range(low, high + 1)]


def words(rng, alphabet, longest=9):
    return "".join(rng.choices(alphabet, k=rng.randint(1, longest)))


def prose(rng, alphabet, n_bytes):
    """Words of an alphabet with punctuation, digits, line ends and mixed-in ASCII words."""
    joints = [" ", " ", " ", ", ", ". ", "\n", "\n\n", "-", " 12", "3456789 ", "'s ", "、", "。", "」"]
    parts, size = [], 0
    while size < n_bytes:
        foreign = rng.random() >= 0.9
        part = rng.choice(["Word", "CODE", "camelCase"]) if foreign else words(rng, alphabet)
        parts += [part, rng.choice(joints)]
        size += len(parts[-2].encode()) + len(parts[-1])
    return "".join(parts)


def python_sources(rng, n_bytes):
    files = sorted(pathlib.Path(os.__file__).parent.glob("*.py"))
    text = "".join(f.read_text(encoding="utf-8", errors="replace") for f in files)
    return text[:n_bytes]


def chinese(rng, n_bytes):
    return prose(rng, blocks((0x4E00, 0x9FFF), (0x3400, 0x34FF), (0x3005, 0x3007),
                             (0x20000, 0x20100)), n_bytes)


def japanese_korean(rng, n_bytes):
    return prose(rng, blocks((0x3041, 0x3096), (0x30A0, 0x30FF), (0xAC00, 0xAD00), (0x4E00, 0x4F00),
                             (0xFF01, 0xFF5E)), n_bytes)


def cyrillic_arabic(rng, n_bytes):
    alphabets = [blocks((0x410, 0x44F)), blocks((0x400, 0x4FF)),
                 blocks((0x621, 0x64A), (0x64B, 0x652)), blocks((0x5D0, 0x5EA)),
                 blocks((0x900, 0x939), (0x93C, 0x94D)), blocks((0xE01, 0xE3A)),
                 blocks((0x1E00, 0x1EFF), (0x300, 0x30F)), blocks((0x1C5, 0x1CC), (0x1F80, 0x1FAF))]
    share = n_bytes // len(alphabets) + 1
    return "".join(prose(rng, alphabet, share) for alphabet in alphabets)


def emoji(rng, n_bytes):
    people, tones = ["👩", "👨", "🧑", "👧"], ["", "🏻", "🏽", "🏿"]
    things = ["💻", "🚀", "❤️", "⚕️", "🌈"]
    units = ["🇳🇴", "🏳️‍🌈", "1️⃣", "☕", "✈️", "a", " ", "\n", "😀!", "x=1"]

    def unit():
        if rng.random() < 0.4:
            return rng.choice(units)
        chain = [rng.choice(people) + rng.choice(tones) for _ in range(rng.randint(1, 4))]
        return "\u200d".join(chain + rng.sample(things, rng.randint(0, 1)))
    return "".join(unit() for _ in range(n_bytes // 14))


def special_tokens(rng, n_bytes):
    names = [t["content"] for t in oracles.tiny_json()["added_tokens"]]
    noise = ["<", "<|", "|>", "<|im_", "<|im_end|", "im_end|>", "<think", "[EOS", "a", " b", "\n",
             "字", "<|reserved_token_", "<|reserved_token_4096|>", "<|<|im_end|>"]
    parts = names + [rng.choice(names + noise) for _ in range(n_bytes // 9)]
    return "".join(parts)


def contractions(rng, n_bytes):
    stems = ["I", "don", "DON", "we", "WE", "Кто", "字", "é", "ﬁ", "x1", "Ǆ", "a\u0301", "_", "it"]
    ends = ["'s", "'S", "'t", "'T", "'re", "'RE", "'Re", "'ve", "'m", "'ll", "'LL", "'d", "'\u017f",
            "'\u212a", "’s", "''s", "'", "'x", "s'"]
    joints = [" ", "", "\n", ".", "  "]
    return "".join(rng.choice(stems) + rng.choice(ends) + rng.choice(joints)
                   for _ in range(n_bytes // 5))


def whitespace(rng, n_bytes):
    spaces = [" ", " ", "\t", "\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1f", "\x85", "\xa0",
              "\u1680", "\u180e", "\u2003", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f",
              "\u3000", "\ufeff"]
    parts = []
    for _ in range(n_bytes // 10):
        parts.append("".join(rng.choices(spaces, k=rng.randint(1, 8))))
        parts.append(rng.choice(["a", "1", "字", ".", "'s", "", "é", "\x00"]))
    return "".join(parts)


def any_code_points(rng, n_bytes):
    """Uniform over what PCRE2 10.42 knows as assigned: Unicode 14.0, the version of Python 3.11;
    with another Python, what was assigned in 3.2 already."""
    data = unicodedata if unicodedata.unidata_version == "14.0.0" else unicodedata.ucd_3_2_0
    assigned = [chr(c) for c in range(0x110000) if data.category(chr(c)) not in ("Cn", "Cs")]
    private = {c for c in assigned if data.category(c) == "Co"}
    common = [c for c in assigned if c not in private] + sorted(private)[:100]
    return "".join(words(rng, common) + rng.choice([" ", "", "\n", "a"])
                   for _ in range(n_bytes // 17))


def invalid_bytes(rng, n_bytes):
    """Text with bytes overwritten, and bytes that begin, continue or break sequences at random."""
    damaged = bytearray(cyrillic_arabic(rng, n_bytes // 2).encode())
    for _ in range(len(damaged) // 20):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    likely = [0x41, 0x80, 0xBF, 0xC0, 0xC2, 0xDF, 0xE0, 0xA0, 0xED, 0x9F, 0xEF, 0xF0, 0x90, 0xF4,
              0x8F, 0xF5, 0xFF, 0x20]
    return bytes(damaged) + bytes(rng.choices(likely, k=n_bytes // 2))


CATEGORIES = {
    python_sources: MEGABYTE, chinese: MEGABYTE // 2, japanese_korean: MEGABYTE // 2,
    cyrillic_arabic: MEGABYTE, emoji: MEGABYTE // 2, special_tokens: MEGABYTE // 2,
    contractions: MEGABYTE // 2, whitespace: MEGABYTE // 2, any_code_points: MEGABYTE // 2,
    invalid_bytes: MEGABYTE // 2,
}


def documents(category, n_bytes):
    """The category's text as documents (bytes) of very different lengths."""
    rng = random.Random(f"{SEED} {category.__name__}")
    text = category(rng, n_bytes)
    data = text if isinstance(text, bytes) else text.encode()
    cuts, at = [0], 0
    while at < len(data):
        at += rng.choice([1, 7, 100, 3000, 50_000])
        if isinstance(text, str):  # not inside a character
            while at < len(data) and data[at] & 0xC0 == 0x80:
                at += 1
        cuts.append(min(at, len(data)))
    return [data[a:b] for a, b in itertools.pairwise(cuts)]


def assert_same(records, expected, got, oracle):
    for record, want, have in zip(records, expected, got):
        if want != have:
            at = next((i for i, (w, h) in enumerate(zip(want, have)) if w != h), None)
            pytest.fail(f"seed {SEED}: differs from {oracle} at token {at}: {record[:200]!r}...\n"
                        f"want {want[at or 0:][:8]}, have {have[at or 0:][:8]}")


@pytest.mark.parametrize("category", CATEGORIES, ids=lambda c: c.__name__)
def test_encodes_and_decodes_as_tiktoken_and_tokenizers(category):
    records = documents(category, CATEGORIES[category])
    assert sum(map(len, records)) > 0.9 * CATEGORIES[category]
    texts = [r.decode("utf-8", errors="replace") for r in records]
    got = [oracles.unpack_ids(r) for r in oracles.run_tool("encode", records)]

    tiktoken = oracles.tiktoken_tiny()
    assert_same(records, tiktoken.encode_batch(texts, allowed_special="all"), got, "tiktoken")
    encodings = oracles.huggingface_tiny().encode_batch(texts, add_special_tokens=False)
    assert_same(records, [e.ids for e in encodings], got, "tokenizers")

    decoded = oracles.run_tool("decode", [oracles.pack_ids(ids) for ids in got])
    assert decoded == [t.encode() for t in texts]


def test_text_of_users_is_encoded_without_special_tokens():
    records = documents(special_tokens, MEGABYTE // 5)
    texts = [r.decode() for r in records]
    got = [oracles.unpack_ids(r) for r in oracles.run_tool("encode-as-text", records)]
    expected = oracles.tiktoken_tiny().encode_ordinary_batch(texts)
    assert_same(records, expected, got, "tiktoken")


def test_decodes_any_ids():
    """Token boundaries fall anywhere in a character; ids cut, repeated and mixed at random."""
    rng = random.Random(SEED)
    lists = [rng.choices(range(4096 if i % 2 else 260), k=rng.randint(0, 60)) for i in range(3000)]
    records = [oracles.pack_ids(ids) for ids in lists]
    expected = [oracles.tiktoken_tiny().decode(ids).encode() for ids in lists]
    assert oracles.run_tool("decode", records) == expected
    assert oracles.run_tool("stream", records) == expected
    skipping = [oracles.huggingface_tiny().decode(ids, skip_special_tokens=False).encode()
                for ids in lists]
    assert skipping == expected


KIMI = None  # the pattern of the file itself
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
         r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def byte_level(use_regex=False):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
            "use_regex": use_regex}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


VARIANTS = {
    "cl100k": {"pre_tokenizer": sequence(split({"Regex": CL100K}), byte_level())},
    "o200k": {"pre_tokenizer": sequence(split({"Regex": O200K}), byte_level())},
    "o200k, matches only": {
        "pre_tokenizer": sequence(split({"Regex": O200K}, "Removed", True), byte_level())},
    "deepseek": {"pre_tokenizer": sequence(*[split({"Regex": p}) for p in DEEPSEEK], byte_level())},
    "gpt2": {"pre_tokenizer": byte_level(use_regex=True)},
    "literal": {"pre_tokenizer": sequence(split({"String": "a.b"}), split({"String": " "}),
                                          byte_level())},
    "no split": {"pre_tokenizer": byte_level()},
    "empty normalizer": {"normalizer": {"type": "Sequence", "normalizers": []}},
}


def write_variant(directory, changes, **model_changes):
    variant = {**oracles.tiny_json(), **changes}
    variant["model"] = {**variant["model"], **model_changes}
    (directory / "tokenizer.json").write_text(json.dumps(variant))
    return oracles.tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))


def assert_variant(directory, tokenizer, n_bytes=40_000):
    records = [r for c in CATEGORIES for r in documents(c, n_bytes)]
    records.append(b"a.b a.bb aa.b")
    texts = [r.decode("utf-8", errors="replace") for r in records]
    expected = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    got = [oracles.unpack_ids(r) for r in oracles.run_tool("encode", records, directory)]
    assert_same(records, expected, got, "tokenizers")


@pytest.mark.parametrize("name", VARIANTS)
def test_reads_other_pre_tokenizers(name, tmp_path):
    assert_variant(tmp_path, write_variant(tmp_path, VARIANTS[name]))


def test_reads_merges_written_as_strings(tmp_path):
    merges = [" ".join(m) for m in oracles.tiny_json()["model"]["merges"]]
    assert_variant(tmp_path, write_variant(tmp_path, {}, merges=merges))


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_ignore_merges_takes_whole_pieces_first(ignore_merges, tmp_path):
    """With a merge removed, a whole piece may be a token that no merge reaches."""
    merges = oracles.tiny_json()["model"]["merges"][::2]
    reachable = {"".join(m) for m in merges}
    merges = [m for m in merges if all(len(p) == 1 or p in reachable for p in m)]
    tokenizer = write_variant(tmp_path, {}, merges=merges, ignore_merges=ignore_merges)
    assert_variant(tmp_path, tokenizer)


def test_added_tokens_of_both_kinds(tmp_path):
    """Tokens with normalized false are found first; the longest of several at one place."""
    added = oracles.tiny_json()["added_tokens"] + [
        {"id": 4096 + i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": normalized, "special": special}
        for i, (content, normalized, special) in enumerate([
            ("lambda", True, False), ("lambda x", False, False), ("quux", True, False),
            ("quuxes", True, False), ("字字", False, True), ("x(", True, True)])]
    tokenizer = write_variant(tmp_path, {"added_tokens": added})
    text = "lambda x(quux): quuxes quuxe lambda y(字字字): unlambdaed 字 lambda x x(".encode()
    got, = oracles.run_tool("encode", [text], tmp_path)
    assert oracles.unpack_ids(got) == tokenizer.encode(text.decode(), add_special_tokens=False).ids
    assert set(oracles.unpack_ids(got)) >= set(range(4096, 4102))
    assert_variant(tmp_path, tokenizer)


def kimi_slices(text):
    """What Kimi's tokenizer hands to tiktoken: parts of 400,000 characters, cut again wherever
    25,000 characters in a row are all whitespace or all not."""
    for start in range(0, len(text), 400_000):
        part, begin, at = text[start:start + 400_000], 0, 0
        for _, group in itertools.groupby(part, str.isspace):
            end = at + len(list(group))
            for cut in range(at + 25_000, end, 25_000):
                yield part[begin:cut]
                begin = cut
            at = end
        yield part[begin:]


def test_very_long_runs_are_cut_as_kimi_does():
    rng = random.Random(SEED)
    letters = "abcdefghijklmnopqrstuvwxyz"
    texts = ["".join(rng.choices(letters, k=n)) for n in (24_999, 25_000, 25_001, 50_001)]
    texts += [" " * 60_000 + "x", "\n" * 25_001, "\x1c\u3000 " * 9000, "字" * 26_000,
              "ab\n" * 133_334 + "é" * 30_000, "x" * 24_995 + "<|im_end|>tail"]
    texts.append("".join(rng.choices(letters + " ", k=450_000)))
    tiktoken = oracles.tiktoken_tiny()
    expected = [[i for s in kimi_slices(t) for i in tiktoken.encode(s, allowed_special="all")]
                for t in texts]
    got = [oracles.unpack_ids(r)
           for r in oracles.run_tool("encode", [t.encode() for t in texts])]
    assert_same([t.encode()[:50] for t in texts], expected, got, "Kimi's wrapper")


def test_one_megabyte_in_one_piece(tmp_path):
    """No cuts in a tokenizer.json: a word, a run of spaces; each far from quadratic time."""
    rng = random.Random(SEED)
    tokenizer = write_variant(tmp_path, {})
    texts = ["".join(rng.choices("abcdefgh", k=MEGABYTE)), " " * MEGABYTE, "ab" * (MEGABYTE // 2)]
    started = time.monotonic()
    got = [oracles.unpack_ids(r)
           for r in oracles.run_tool("encode", [t.encode() for t in texts], tmp_path)]
    assert time.monotonic() - started < 20
    assert_same(texts, [tokenizer.encode(t, add_special_tokens=False).ids for t in texts], got,
                "tokenizers")
