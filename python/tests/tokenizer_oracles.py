"""What the tokenizer tests share: the C++ tool that runs our tokenizer over records, and the PyPI
libraries on the same files."""
import base64
import functools
import json
import os
import pathlib
import struct
import subprocess

import pytest
import tiktoken
import tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / "models/tiny-k2"
TOOL = ROOT / os.environ.get("KDT_BUILD", "build") / "src/text/tokenizer_tool"


def run_tool(mode, records, directory=TINY):
    """The tool's answers (bytes) to records (bytes). A missing tool is a failure, not a skip."""
    if not TOOL.exists():
        pytest.fail(f"{TOOL} is missing: build the tests first (or set KDT_BUILD)")
    framed = b"".join(struct.pack("<I", len(r)) + r for r in records)
    done = subprocess.run([TOOL, str(directory), mode], input=framed, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    answers, at = [], 0
    while at < len(done.stdout):
        size, = struct.unpack_from("<I", done.stdout, at)
        answers.append(done.stdout[at + 4:at + 4 + size])
        at += 4 + size
    assert len(answers) == len(records)
    return answers


def pack_ids(ids):
    return struct.pack(f"<{len(ids)}i", *ids)


def unpack_ids(record):
    return list(struct.unpack(f"<{len(record) // 4}i", record))


@functools.cache
def tiny_json():
    return json.loads((TINY / "tokenizer.json").read_text())


@functools.cache
def tiktoken_tiny():
    ranks = {}
    for line in (TINY / "tiktoken.model").read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    config = json.loads((TINY / "tokenizer_config.json").read_text())
    special = {t["content"]: int(i) for i, t in config["added_tokens_decoder"].items()}
    pattern = tiny_json()["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    return tiktoken.Encoding("tiny", pat_str=pattern, mergeable_ranks=ranks,
                             special_tokens=special)


@functools.cache
def huggingface_tiny():
    return tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
