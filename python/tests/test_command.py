"""The contract of `kdtree generate`, `inspect` and `bench`, from outside."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command import (
    BINARY, DRAFT, GOLDEN, MODEL, PAIR, copy_checkpoint, generate, kdtree, needs_binary,
)  # fmt: skip
from kdtree import kdtr

pytestmark = needs_binary

REFERENCE = json.loads((GOLDEN / "tiny_k2_reference.json").read_text())
STOP_TOKENS = {4065, 4066}
MODES = {
    "plain": ["--no-spec"],
    "budget 0": ["--budget", "0"],
    "chain": ["--chain"],
    "budget 15": ["--budget", "15"],
    "budget 32": [],
    "budget 64": ["--budget", "64"],
}


def ids(tokens):
    return ",".join(map(str, tokens))


def batch(prompts):
    return [argument for prompt in prompts for argument in ("--prompt-ids", ids(prompt))]


def test_json_field_by_field():
    out = generate(*PAIR, "--prompt", "def f(", "--max-tokens", "20")
    assert list(out) == [
        "prompt_ids", "token_ids", "text", "finish_reason", "acceptance_lengths", "rounds",
        "timing",
    ]  # fmt: skip
    assert all(type(i) is int for i in out["prompt_ids"] + out["token_ids"])
    assert type(out["text"]) is str and out["finish_reason"] in ("stop", "length")
    assert all(type(n) is int and 1 <= n <= 16 for n in out["acceptance_lengths"])
    assert out["rounds"] == len(out["acceptance_lengths"])
    assert list(out["timing"]) == ["load_s", "prefill_s", "decode_s", "tokens_per_s"]
    assert all(type(t) is float and t > 0 for t in out["timing"].values())


def test_finish_by_length():
    out = generate(*PAIR, "--prompt", "def f(", "--max-tokens", "20", "--ignore-eos")
    assert out["finish_reason"] == "length" and len(out["token_ids"]) == 20
    # The first token is the prefill's; a round ran while fewer than 20 were committed.
    lengths = out["acceptance_lengths"]
    assert sum(lengths[:-1]) < 20 <= sum(lengths)
    assert len(generate(*PAIR, "--prompt", "x", "--max-tokens", "1")["token_ids"]) == 1


def test_stop_token_is_included():
    case = next(c for c in REFERENCE if c["greedy_ids"][-1] in STOP_TOKENS)
    prompt = ["--prompt-ids", ids(case["prompt_ids"]), "--max-tokens", "96"]
    out = generate(*PAIR, *prompt)
    assert out["finish_reason"] == "stop" and out["token_ids"] == case["greedy_ids"]
    # Lengths count before the cut at the stop token.
    assert sum(out["acceptance_lengths"]) >= len(out["token_ids"]) - 1
    assert "<|im_end|>" not in out["text"] and "[EOS]" not in out["text"]
    longer = generate(*PAIR, *prompt, "--ignore-eos")["token_ids"]
    assert len(longer) == 96 and longer[: len(out["token_ids"])] == out["token_ids"]


@pytest.mark.parametrize("mode", MODES)
def test_greedy_tokens_are_the_reference_in_every_mode(mode):
    cases = REFERENCE[::5]
    out = generate(*PAIR, *MODES[mode], "--max-tokens", "96",
                   *batch(c["prompt_ids"] for c in cases))  # fmt: skip
    for case, run in zip(cases, out, strict=True):
        assert run["prompt_ids"] == case["prompt_ids"]
        assert run["token_ids"] == case["greedy_ids"]
        if mode in ("plain", "budget 0"):
            assert set(run["acceptance_lengths"]) <= {1}


def test_largest_budget():
    case = REFERENCE[0]
    out = generate(*PAIR, "--budget", "1024", "--max-tokens", "24",
                   "--prompt-ids", ids(case["prompt_ids"]))  # fmt: skip
    assert out["token_ids"] == case["greedy_ids"][:24]


@pytest.mark.parametrize("key, mode", [("0", "chain"), ("15", "budget 15"), ("64", "budget 64")])
def test_acceptance_lengths(key, mode):
    """One prompt alone and one of a batch accept what the paper's own code accepts."""
    case = REFERENCE[3]
    flags = [*PAIR, *MODES[mode], "--max-tokens", "96"]
    alone = generate(*flags, "--prompt-ids", ids(case["prompt_ids"]))
    want = case["acceptance"][key]
    assert alone["acceptance_lengths"] == want
    both = generate(*flags, *batch([[1, 2, 3], case["prompt_ids"]]))
    assert both[1]["acceptance_lengths"] == want and both[1]["token_ids"] == alone["token_ids"]


def test_without_drafter_decoding_is_plain():
    case = REFERENCE[0]
    out = generate("--model", MODEL, "--prompt-ids", ids(case["prompt_ids"]), "--max-tokens", "96")
    assert out["token_ids"] == case["greedy_ids"] and set(out["acceptance_lengths"]) <= {1}


def test_sampling_is_the_same_in_every_mode():
    flags = ["--temperature", "0.9", "--top-p", "0.95", "--seed", "7", "--max-tokens", "40",
             "--prompt", "class Stack:", "--prompt", "import os"]  # fmt: skip
    other_seed = ["8" if flag == "7" else flag for flag in flags]
    runs = {mode: generate(*PAIR, *MODES[mode], *flags) for mode in ("plain", "chain", "budget 64")}
    tokens = {mode: [run["token_ids"] for run in out] for mode, out in runs.items()}
    assert tokens["plain"] == tokens["chain"] == tokens["budget 64"]
    other = [run["token_ids"] for run in generate(*PAIR, *other_seed)]
    assert other != tokens["plain"]
    # A filter alone means temperature 1; temperature 0 means greedy.
    prompt = ["--prompt", "class Stack:", "--max-tokens", "40"]
    greedy = generate(*PAIR, *prompt)["token_ids"]
    assert generate(*PAIR, *prompt, "--temperature", "0", "--seed", "3")["token_ids"] == greedy
    assert generate(*PAIR, *prompt, "--top-k", "1")["token_ids"] == greedy
    assert generate(*PAIR, *prompt, "--top-p", "0.99")["token_ids"] != greedy


def test_batch_is_a_list_in_order(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("import os")
    second.write_text("class Stack:\n    def __init__")
    out = generate(*PAIR, "--prompt-file", first, "--prompt-file", second, "--max-tokens", "8")
    assert isinstance(out, list)
    for run, path in zip(out, (first, second), strict=True):
        alone = generate(*PAIR, "--prompt", path.read_text(), "--max-tokens", "8")
        assert run["prompt_ids"] == alone["prompt_ids"] and run["token_ids"] == alone["token_ids"]


def test_special_tokens_and_chat():
    """--prompt parses special tokens and adds no BOS; the text of --chat stays text."""
    end = 4066
    assert generate(*PAIR, "--prompt", "<|im_end|>", "--max-tokens", "1")["prompt_ids"] == [end]

    def chat(*flags):
        return generate(*PAIR, "--max-tokens", "1", "--chat", *flags)["prompt_ids"]

    plain, tricky = chat("hi"), chat("hi<|im_end|>")
    assert plain.count(end) == tricky.count(end) and len(tricky) > len(plain)
    assert chat("hi", "--system", "Be brief.") != plain


def test_prompt_that_is_not_utf8():
    """Ill-formed bytes become U+FFFD, as Python's errors='replace' has it."""
    bad = generate(*PAIR, "--prompt", b"caf\xe9 = \xf0\x9f\x98 1", "--max-tokens", "4")
    want = generate(*PAIR, "--prompt", "caf\ufffd = \ufffd 1", "--max-tokens", "4")
    assert bad["prompt_ids"] == want["prompt_ids"] and bad["token_ids"] == want["token_ids"]


def test_prompt_from_standard_input(tmp_path):
    (tmp_path / "prompt").write_text("def ü(\n")
    with open(tmp_path / "prompt") as prompt:
        out = generate(*PAIR, "--prompt-file", "-", "--max-tokens", "4", stdin=prompt)
    assert out["prompt_ids"] == generate(*PAIR, "--prompt", "def ü(\n")["prompt_ids"]


def test_threads_do_not_change_the_output():
    flags = ["--prompt", "def main():", "--max-tokens", "24", "--temperature", "1"]
    runs = [generate(*PAIR, *flags, "--threads", n)["token_ids"] for n in (1, 2, 5)]
    assert runs[0] == runs[1] == runs[2]


def test_text_on_stdout():
    """Without --json: the text, then the mode and what it did; the default budget is printed."""
    run = kdtree("generate", *PAIR, "--prompt", "import os", "--max-tokens", "12", "--show-tree")
    want = generate(*PAIR, "--prompt", "import os", "--max-tokens", "12")
    text = run.stdout.decode()
    assert run.returncode == 0 and run.stderr == b""
    assert text.startswith(want["text"]) and "budget 32" in text and "12 tokens" in text
    assert "\x1b" not in text  # no colour into a pipe
    assert text.rsplit("tokens/s]", 1)[1].count("\n") > 5  # the tree


def test_verbose_prints_kv_bytes_per_token():
    run = kdtree("generate", "--json", *PAIR, "--prompt", "x", "--max-tokens", "1", "--verbose")
    target, drafter = 5 * 576 * 4, 3 * 2 * 4 * 64 * 4  # layers x elements x element size
    text = run.stderr.decode()
    assert f"{target + drafter} bytes per token (target {target}, drafter {drafter})" in text
    json.loads(run.stdout)


# A process of its own between the test and the command: a child's peak RSS starts at its parent's.
MEASURE = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(status)
"""


def test_memory():
    """Peak RSS under three times the checkpoints' bytes plus the KV cache."""
    prompt, new = 1000, 64
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, BINARY, "generate", "--json", *map(str, PAIR),
         "--prompt-ids", ids(range(1, prompt + 1)), "--max-tokens", str(new), "--ignore-eos"],
        capture_output=True)  # fmt: skip
    assert run.returncode == 0 and len(json.loads(run.stdout)["token_ids"]) == new
    weights = sum((d / "model.safetensors").stat().st_size for d in (MODEL, DRAFT))
    kv = (prompt + new) * (5 * 576 * 4 + 3 * 2 * 4 * 64 * 4)
    peak = int(run.stderr) * 1024
    print(f"peak RSS {peak / 1e6:.1f} MB, allowed {(3 * weights + kv) / 1e6:.1f} MB")
    assert peak < 3 * weights + kv


@pytest.mark.parametrize("own", [None, "7"])
def test_waiting_threads_do_not_spin_for_long(own):
    """Unless the user says how long: GCC's OpenMP reads it from the environment, before main()."""
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {k: v for k, v in os.environ.items() if k not in names}
    if own:
        environment["GOMP_SPINCOUNT"] = own
    process = subprocess.Popen(
        [BINARY, "bench", "--op", "linear"], env=environment, stdout=subprocess.PIPE
    )
    process.stdout.readline()  # it runs
    entries = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    process.kill()
    process.communicate()
    assert f"GOMP_SPINCOUNT={own or 1000}".encode() in entries


# inspect


def test_inspect_checkpoints():
    run = kdtree("inspect", MODEL)
    text = run.stdout.decode()
    assert (run.returncode, run.stderr) == (0, b"")
    for words in ("DeepseekV3ForCausalLM", "INT4", "13,866,944", "complete"):
        assert words in text
    assert "5 layers x 576 x 4 = 11,520 bytes in fp32, 5,760 in bf16" in text
    run = kdtree("inspect", DRAFT)
    assert run.returncode == 0 and "DFlash" in run.stdout.decode()
    assert "3 layers x 2 x 4 heads x 64 x 4 = 6,144 bytes" in run.stdout.decode()


def test_inspect_kdtr(tmp_path):
    source = GOLDEN / "tree_build.budget8.kdtr"
    run = kdtree("inspect", source, "--verify")
    text = run.stdout.decode()
    assert (run.returncode, run.stderr) == (0, b"")
    assert re.search(r"^logp +f32 +\[5, 1, 8\]", text, re.M) and "ok" in text
    spoiled = tmp_path / "spoiled.kdtr"
    data = bytearray(source.read_bytes())
    data[data.index(kdtr.read(source)[0]["scores"].tobytes()) + 9] ^= 0xFF
    spoiled.write_bytes(data)
    assert kdtree("inspect", spoiled).returncode == 0
    run = kdtree("inspect", spoiled, "--verify")
    assert run.returncode == 1 and b"BAD" in run.stdout
    assert str(spoiled) in run.stderr.decode() and len(run.stderr.splitlines()) == 1


# bench


def read_csv(path):
    lines = path.read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    return "\n".join(comments), list(csv.DictReader(lines[len(comments) :]))


def test_bench_ops(tmp_path):
    """Every op of the table has a case whose output is sound, and a time."""
    path = tmp_path / "ops.csv"
    run = kdtree("bench", "--model", MODEL, "--draft", DRAFT, "--min-time", "0", "--csv", path)
    assert (run.returncode, run.stderr) == (0, b""), run.stderr.decode()
    assert "GFLOP/s" in run.stdout.decode() and "GB/s" in run.stdout.decode()
    header, rows = read_csv(path)
    for word in ("commit", "cpu:", "threads used", "method:", "roof:"):
        assert word in header
    assert {row["op"] for row in rows} == {
        "linear", "embedding", "rms_norm", "rope", "silu_mul", "moe_route", "moe_experts",
        "verify_attention", "lse_merge", "draft_attention", "draft_topk", "tree_build",
        "tree_accept", "kv_commit",
    }  # fmt: skip
    assert all(float(row["us"]) > 0 and float(row["GB/s"]) >= 0 for row in rows)


def test_bench_of_chosen_ops():
    run = kdtree("bench", "--op", "tree_build", "--op", "rope", "--min-time", "0")
    ops = {line.split()[0] for line in run.stdout.decode().splitlines() if re.search(r"\d$", line)}
    assert run.returncode == 0 and {"tree_build", "rope"} <= ops and "linear" not in ops


def test_bench_decode(tmp_path):
    path = tmp_path / "decode.csv"
    run = kdtree("bench", "--decode", *PAIR, "--prompt", "def f(", "--max-tokens", "24",
                 "--budgets", "8,64", "--repeats", "1", "--csv", path)  # fmt: skip
    assert (run.returncode, run.stderr) == (0, b"")
    assert "same tokens" in run.stdout.decode()
    _, rows = read_csv(path)
    assert [(row["mode"], row["budget"]) for row in rows] == [
        ("plain", ""), ("DFlash chain", ""), ("DDTree", "8"), ("DDTree", "64"),
    ]  # fmt: skip
    assert {row["tokens"] for row in rows} == {rows[0]["rounds"]}
    assert float(rows[0]["acceptance"]) == 1 and float(rows[3]["acceptance"]) > 1
    for row in rows:
        assert float(row["tokens/s"]) > 0 and float(row["ms/round"]) > 0


def test_bench_decode_without_drafter():
    """One mode, which has none to agree with."""
    run = kdtree("bench", "--decode", "--model", MODEL, "--prompt", "x", "--max-tokens", "4")
    assert (run.returncode, run.stderr) == (0, b"")
    assert b"plain" in run.stdout and b"same tokens" not in run.stdout


def test_bench_profile(tmp_path):
    """The ops and what lies between them add up to the round."""
    path = tmp_path / "profile.csv"
    run = kdtree("bench", "--profile", *PAIR, "--prompt", "def f(", "--max-tokens", "24",
                 "--budget", "15", "--repeats", "1", "--csv", path)  # fmt: skip
    assert (run.returncode, run.stderr) == (0, b"")
    assert "roofline" in run.stdout.decode() and "verify" in run.stdout.decode()
    _, rows = read_csv(path)
    us = {row["op"]: float(row["us/round"]) for row in rows}
    whole, between = us.pop("round"), us.pop("between ops")
    assert whole == pytest.approx(us.pop("all ops") + between, rel=1e-2)
    assert whole == pytest.approx(sum(us.values()) + between, rel=1e-2)
    calls = {row["op"]: row["calls"] for row in rows}
    assert calls["tree_build"] == calls["tree_accept"] == calls["draft_topk"] == "1"
    assert calls["verify_attention"] == "5" and calls["draft_attention"] == "3"


def test_csv_replaces_the_old_file_only_when_complete(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("old")
    flags = ["bench", "--decode", "--model", MODEL, "--prompt", "x", "--csv", path]
    assert kdtree(*flags, "--draft", "/nowhere").returncode == 1
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    assert kdtree(*flags, "--max-tokens", "4").returncode == 0
    assert path.read_text().startswith("# kdtree bench") and list(tmp_path.iterdir()) == [path]


def test_version():
    run = kdtree("--version")
    assert (run.returncode, run.stderr) == (0, b"")
    assert re.fullmatch(r"kdtree, commit \S+\n", run.stdout.decode())


def test_help_teaches():
    assert b"generate" in kdtree("--help").stdout
    for command in ("generate", "inspect", "bench"):
        run = kdtree(command, "--help")
        text = run.stdout.decode()
        assert run.returncode == 0 and "Example" in text and f"kdtree {command}" in text
        assert max(map(len, text.splitlines())) <= 120


def test_model_directory_may_be_relative(tmp_path):
    copy_checkpoint(MODEL, tmp_path)
    out = generate("--model", "tiny-k2/", "--prompt", "x", "--max-tokens", "1", cwd=tmp_path)
    assert len(out["token_ids"]) == 1
