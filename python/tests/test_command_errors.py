"""What `kdtree` says of hostile and broken input: one clear line, nothing else."""

import json
import os
import pathlib
import resource
import signal
import struct
import subprocess
import time

import pytest
from command import (
    BINARY, DRAFT, GOLDEN, MODEL, PAIR, assert_fails, copy_checkpoint, edit_config, generate,
    kdtree, needs_binary,
)  # fmt: skip
from safetensors_edit import Safetensors

pytestmark = needs_binary

ONE = ["--prompt-ids", "1,2,3"]
IDS = [*ONE, "--max-tokens", "4"]


def run(*arguments, **options):
    return kdtree("generate", "--json", *arguments, **options)


def run_model(model, *arguments):
    return run("--model", model, *(arguments or IDS))


def run_pair(model, draft):
    return run("--model", model, "--draft", draft, *IDS)


@pytest.fixture
def target(tmp_path):
    return copy_checkpoint(MODEL, tmp_path)


@pytest.fixture
def drafter(tmp_path):
    return copy_checkpoint(DRAFT, tmp_path)


USAGE = {
    "no command": ([], "give a command"),
    "unknown command": (["frobnicate"], "frobnicate"),
    "flag without command": (["--frobnicate"], "'--frobnicate' is no flag", "give a command"),
    "no model": (["generate", "--prompt", "x"], "--model"),
    "no prompt": (["generate", *PAIR], "--prompt"),
    "two kinds of prompt": (["generate", *PAIR, "--prompt", "x", "--chat", "y"], "--prompt"),
    "unknown flag": (["generate", *PAIR, "--prompt", "x", "--frobnicate"], "--frobnicate"),
    "unknown flag's value": (["generate", *PAIR, *IDS, "--tempreature", "1"],
                             "no flag '--tempreature' "),
    "misspelt required flag": (["generate", "--modle", MODEL, *IDS], "no flag '--modle'"),
    "chain without drafter": (["generate", "--model", MODEL, *IDS, "--chain"], "--draft"),
    "budget without drafter": (["generate", "--model", MODEL, *IDS, "--budget", "8"], "--draft"),
    "two modes": (["generate", *PAIR, *IDS, "--chain", "--no-spec"], "--chain"),
    "chain and budget": (["generate", *PAIR, *IDS, "--chain", "--budget", "0"], "--chain"),
    "two measurements": (["bench", "--decode", "--profile", *PAIR, *IDS], "--profile"),
    "budget 5000": (["generate", *PAIR, *IDS, "--budget", "5000"], "--budget", "1024"),
    "negative budget": (["generate", *PAIR, *IDS, "--budget", "-1"], "--budget"),
    "no tokens": (["generate", *PAIR, "--prompt", "x", "--max-tokens", "0"], "--max-tokens"),
    "negative tokens": (["generate", *PAIR, "--prompt", "x", "--max-tokens", "-5"], "--max-tokens"),
    "tokens beyond int": (["generate", *PAIR, "--prompt", "x", "--max-tokens", "9" * 12], "999"),
    "no threads": (["generate", *PAIR, *IDS, "--threads", "0"], "--threads"),
    "amplitude": (["generate", *PAIR, *IDS, "--draft-yarn-amplitude", "x"], "auto,full,ratio"),
    "no number": (["generate", *PAIR, *IDS, "--temperature", "hot"], "--temperature", "hot"),
    "negative seed": (["generate", *PAIR, *IDS, "--seed", "-1"], "--seed"),
    "seed beyond 64 bits": (["generate", *PAIR, *IDS, "--seed", str(2**64)], "--seed"),
    "empty temperature": (["generate", *PAIR, *IDS, "--temperature", ""], "--temperature"),
    "empty context": (["generate", *PAIR, *IDS, "--context", ""], "--context"),
    "empty drafter": (["generate", "--model", MODEL, *IDS, "--draft", ""], "--draft"),
    "value for a flag": (["generate", *PAIR, *IDS, "--json=3"], "--json: takes no value"),
    "false for a flag": (["bench", "--decode=false", *PAIR, *IDS], "--decode: takes no value"),
    "negative temperature": (["generate", *PAIR, *IDS, "--temperature", "-1"], "--temperature: -1"),
    "NaN temperature": (["generate", *PAIR, *IDS, "--temperature", "nan"], "--temperature: nan"),
    "infinite temperature": (["generate", *PAIR, *IDS, "--temperature", "inf"], "--temperature"),
    "top-p above 1": (["generate", *PAIR, *IDS, "--top-p", "1.5"], "--top-p: 1.5", "at most 1"),
    "top-p 0": (["generate", *PAIR, *IDS, "--top-p", "0"], "--top-p", "above 0"),
    "top-p that rounds to 0": (["generate", *PAIR, *IDS, "--top-p", "1e-60"], "--top-p"),
    "NaN top-p": (["generate", *PAIR, *IDS, "--top-p", "nan"], "--top-p"),
    "negative top-k": (["generate", *PAIR, *IDS, "--top-k", "-3"], "--top-k: -3"),
    "top-k beyond int": (["generate", *PAIR, *IDS, "--top-k", "9" * 12], "--top-k", "999"),
    "min-p 1": (["generate", *PAIR, *IDS, "--min-p", "1"], "--min-p: 1", "below 1"),
    "no context": (["generate", *PAIR, *IDS, "--context", "0"], "--context: 0", "from 1"),
    "negative context": (["generate", *PAIR, *IDS, "--context", "-5"], "--context: -5"),
    "a tree of JSON": (["generate", *PAIR, *IDS, "--show-tree", "--json"], "--show-tree", "--json"),
    "no tree to show": (["generate", *PAIR, *IDS, "--show-tree", "--no-spec"], "--show-tree"),
    "no drafter's tree": (["generate", "--model", MODEL, *IDS, "--show-tree"], "--show-tree"),
    "NaN seconds": (["bench", "--op", "rope", "--min-time", "nan"], "--min-time", "nan"),
    "lines in a command": (["fro\nbnicate\x1b[31m"], "fro?bnicate?[31m"),
    "ids: words": (["generate", *PAIR, "--prompt-ids", "1,two,3"], "--prompt-ids", "two"),
    "ids: empty": (["generate", *PAIR, "--prompt-ids", ""], "--prompt-ids"),
    "ids: hole": (["generate", *PAIR, "--prompt-ids", "1,,3"], "--prompt-ids"),
    "ids: negative": (["generate", *PAIR, "--prompt-ids", "1,-2"], "--prompt-ids", "-2"),
    "ids: beyond int": (["generate", *PAIR, "--prompt-ids", "99999999999"], "--prompt-ids"),
    "system without chat": (["generate", *PAIR, "--prompt", "x", "--system", "y"], "--chat"),
    "unknown op": (["bench", "--op", "frobnicate"], "op frobnicate: --backend cpu", "linear"),
    "op of the other backend": (["bench", "--op", "verify_attention_variants"], "--op", "linear"),
    "op of decoding": (["bench", "--decode", *PAIR, *ONE, "--op", "rope"], "--op is for ops"),
    "seconds of decoding": (["bench", "--profile", *PAIR, *ONE, "--min-time", "1"], "--min-time"),
    "budget of --decode": (["bench", "--decode", *PAIR, *ONE, "--budget", "9"], "--budgets"),
    "budgets of --profile": (["bench", "--profile", *PAIR, *ONE, "--budgets", "9"], "--budget"),
    "budgets of ops": (["bench", "--budgets", "8"], "--budgets is for --decode"),
    "budget of ops": (["bench", "--budget", "8"], "--budget is for --profile"),
    "repeats of ops": (["bench", "--repeats", "2"], "--repeats is for --decode or --profile"),
    "budgets without drafter": (["bench", "--decode", "--model", MODEL, *ONE, "--budgets", "8"],
                                "--budgets needs a drafter"),
    "profile without drafter": (["bench", "--profile", "--model", MODEL, *ONE, "--budget", "8"],
                                "--budget needs a drafter"),
    "drafter alone": (["bench", "--draft", DRAFT], "--draft needs --model"),
    "seconds on the GPU": (["bench", "--backend", "cuda", "--min-time", "1"], "--min-time"),
    "csv file of the GPU": (["bench", "--backend", "cuda", "--csv", "x"], "--csv-dir"),
    "csv directory of the CPU": (["bench", "--csv-dir", "x"], "--csv-dir", "cuda"),
    "decoding on the GPU": (["bench", "--backend", "cuda", "--decode", *PAIR, *IDS], "cuda"),
    "bench without model": (["bench", "--decode", "--prompt", "x"], "--model"),
    "bench without prompt": (["bench", "--profile", "--model", MODEL], "--prompt"),
    "bench with stray prompt": (["bench", "--prompt", "x"], "--decode"),
    "verify a directory": (["inspect", "--verify", MODEL], "--verify"),
    "inspect nothing": (["inspect"], "PATH"),
}  # fmt: skip


@pytest.mark.parametrize("case", USAGE)
def test_wrong_usage(case):
    arguments, *words = USAGE[case]
    assert_fails(kdtree(*arguments), *words, status=2)


REFUSED = {
    "empty prompt": (["--prompt", ""], "prompt has no tokens"),
    "id out of range": (["--prompt-ids", "1,4096"], "4096", "4095"),
    "prompt beyond the context": (["--prompt-ids", ",".join(["7"] * 5000)], "5000", "4096"),
    "prompt beyond a chosen context": ([*IDS, "--context", "3"], "3"),
    "context beyond the model's": ([*IDS, "--context", "5000"], "5000", "4096"),
    "no such prompt file": (["--prompt-file", "/nowhere/prompt.txt"], "/nowhere/prompt.txt"),
    "no prompt on standard input": (["--prompt-file", "-"], "standard input"),
    "lines in a file name": (["--prompt-file", "/no\nwhere\n\n\n.txt"], "/no?where???.txt"),
    "a directory as prompt file": (["--prompt-file", "/tmp"], "/tmp"),
    "a bad prompt of a batch": (["--prompt-ids", "1", "--prompt-ids", "9999"], "prompt 2", "9999"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_request(case):
    arguments, *words = REFUSED[case]
    assert_fails(run(*PAIR, *arguments), *words)


def test_missing_directories():
    assert_fails(run_model("/nowhere"), "/nowhere")
    assert_fails(run_pair(MODEL, "/nowhere"), "/nowhere")
    assert_fails(kdtree("inspect", "/nowhere"), "/nowhere")
    assert_fails(kdtree("bench", "--model", "/nowhere"), "/nowhere")


def test_no_gpu():
    run = kdtree("bench", "--backend", "cuda", "--op", "lse_merge")
    assert_fails(run, "--backend cuda", "GPU", "make cuda")


def test_models_in_each_others_place():
    assert_fails(run_model(DRAFT), "tiny-k2-dflash")
    assert_fails(run_pair(MODEL, MODEL), "tiny-k2")
    assert_fails(run_pair(DRAFT, MODEL), "tiny-k2-dflash")


def test_inspect_of_other_files(tmp_path):
    weights = MODEL / "model.safetensors"
    assert_fails(kdtree("inspect", weights), weights, "give its directory")
    assert_fails(kdtree("inspect", MODEL / "config.json"), "config.json", "directory", "KDTR")
    (tmp_path / "empty").touch()
    assert_fails(kdtree("inspect", tmp_path / "empty"), tmp_path / "empty")
    assert_fails(kdtree("inspect", "/dev/zero"), "/dev/zero")


# Weights.


def edit_weights(directory, change):
    file = Safetensors(directory / "model.safetensors")
    change(file)
    file.save()


def test_truncated_file(target):
    path = target / "model.safetensors"
    data = path.read_bytes()
    for size in (0, 7, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        assert_fails(run_model(target), path)


def test_shards(target):
    """Whole shards load; a truncated or a missing one, or a broken index, is named."""
    want = generate("--model", MODEL, *IDS)["token_ids"]
    paths = Safetensors(target / "model.safetensors").split(3)
    assert generate("--model", target, *IDS)["token_ids"] == want
    data = paths[1].read_bytes()
    paths[1].write_bytes(data[:-10])
    assert_fails(run_model(target), paths[1])
    paths[1].unlink()
    assert_fails(run_model(target), paths[1])
    paths[1].write_bytes(data)
    index = target / "model.safetensors.index.json"
    text = index.read_text()
    index.write_text(text.replace("model.norm.weight", "model.form.weight"))
    assert_fails(run_model(target), "form.weight")
    index.write_text(text[: len(text) // 2])
    assert_fails(run_model(target), index)
    index.unlink()
    assert_fails(run_model(target), target)


@pytest.mark.parametrize(
    "part",
    ["embed_tokens", "lm_head", "model.norm", "layers.2.self_attn.kv_b_proj",
     "layers.0.mlp.down_proj", "layers.3.mlp.experts.7.up_proj.weight_packed",
     "layers.1.mlp.gate.e_score_correction_bias"],
)  # fmt: skip
def test_missing_tensor(target, part):
    name = Safetensors(target / "model.safetensors").find(part)
    edit_weights(target, lambda file: file.entries.pop(name))
    name = name.removesuffix(".weight_packed")  # a module without one has scales alone
    assert_fails(run_model(target), name)
    assert_incomplete(target, name)


def test_missing_drafter_tensor(drafter):
    edit_weights(drafter, lambda file: file.entries.pop("layers.1.self_attn.k_norm.weight"))
    assert_fails(run_pair(MODEL, drafter), "layers.1.self_attn.k_norm.weight")
    assert_incomplete(drafter, "layers.1.self_attn.k_norm.weight")


def assert_incomplete(directory, name):
    """`inspect` prints its report, which names the tensor, and fails."""
    report = kdtree("inspect", directory)
    assert report.returncode == 1 and name in report.stdout.decode()
    assert "incomplete" in report.stderr.decode() and len(report.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "part, dtype",
    [("model.norm.weight", "I16"), ("self_attn.o_proj.weight", "I16"), ("embed_tokens", "U16"),
     ("up_proj.weight_packed", "F32"), ("up_proj.weight_scale", "I16")],
)  # fmt: skip
def test_wrong_dtype(target, part, dtype):
    name = Safetensors(target / "model.safetensors").find(part)
    edit_weights(target, lambda file: file.entries[name].__setitem__(0, dtype))
    assert_fails(run_model(target), name)
    assert_incomplete(target, name)


def test_expert_in_another_dtype(target):
    module = "layers.3.mlp.experts.7.up_proj"

    def unpack(file):
        name = file.find(f"{module}.weight_packed").removesuffix("_packed")
        for suffix in ("_packed", "_scale", "_shape"):
            file.entries.pop(name + suffix, None)
        file.entries[name] = ["BF16", [128, 256], bytes(2 * 128 * 256)]

    edit_weights(target, unpack)
    assert_fails(run_model(target), f"{module}.weight is bf16", "i32", "experts.0.up_proj")


def test_wrong_shape(target):
    def transpose(file):
        entry = file.entries[file.find("layers.0.mlp.down_proj")]
        entry[1] = entry[1][::-1]

    edit_weights(target, transpose)
    assert_fails(run_model(target), "layers.0.mlp.down_proj.weight", "512", "256")


@pytest.mark.parametrize("part", ["model.norm", "embed_tokens", "layers.4.self_attn.q_a_proj",
                                  "experts.3.down_proj.weight_scale"])  # fmt: skip
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_weights_that_are_no_numbers(target, part, value):
    name = Safetensors(target / "model.safetensors").find(part)

    def spoil(file):
        bits = struct.pack("<f", float(value))[2:]  # bf16
        file.entries[name][2] = file.entries[name][2][:-2] + bits

    edit_weights(target, spoil)
    assert_fails(run_model(target), name)


def test_nan_drafter(drafter):
    def spoil(file):
        file.entries["fc.weight"][2] = b"\xc0\x7f" + file.entries["fc.weight"][2][2:]

    edit_weights(drafter, spoil)
    assert_fails(run_pair(MODEL, drafter), "fc.weight")


def test_numbers_that_overflow(target):
    """Finite weights, infinite logits: an error of that request; its batch goes on."""
    huge = b"\x7f\x7f"  # bf16 3.4e38
    file = Safetensors(target / "model.safetensors")
    embedding, head = (file.entries[file.find(name)] for name in ("embed_tokens", "lm_head"))
    row = 2 * embedding[1][1]
    embedding[2] = embedding[2][: 7 * row] + huge * (row // 2) + embedding[2][8 * row :]
    file.save()
    pair = ["--model", target, "--draft", DRAFT, "--max-tokens", "4"]
    assert_fails(run(*pair, "--prompt-ids", "1,7,3"), "model's logits")
    both = run(*pair, "--prompt-ids", "1,2,3", "--prompt-ids", "1,7,3")
    assert both.returncode == 1 and b"prompt 2" in both.stderr
    good, bad = json.loads(both.stdout)
    assert good["token_ids"] == generate(*pair, "--prompt-ids", "1,2,3")["token_ids"]
    assert bad["finish_reason"] == "error" and "model's logits" in bad["error"]

    head[2] = huge * (len(head[2]) // 2)
    file.save()
    assert_fails(run(*pair, "--prompt-ids", "1,2,3"), "model's logits")


def test_drafter_that_overflows(drafter):
    """Finite weights whose features overflow: the error names the drafter."""

    def spoil(file):
        file.entries["fc.weight"][2] = b"\x7f\x7f" * (len(file.entries["fc.weight"][2]) // 2)

    edit_weights(drafter, spoil)
    assert_fails(run_pair(MODEL, drafter), "drafter's logits")


# Configs.

CONTRADICTIONS = {
    "hidden size": ({"hidden_size": 512}, "512"),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers", "0"),
    "a layer too many": ({"num_hidden_layers": 6}, "layers.5"),
    "negative vocabulary": ({"vocab_size": -1}, "vocab_size", "-1"),
    "huge vocabulary": ({"vocab_size": 2**40}, "vocab_size"),
    "more experts a token than experts": ({"num_experts_per_tok": 17}, "num_experts_per_tok"),
    "groups that do not divide": ({"n_group": 3}, "n_group"),
    "odd rope": ({"qk_rope_head_dim": 63}, "qk_rope_head_dim"),
    "a word for a number": ({"num_attention_heads": "four"}, "num_attention_heads"),
    "no heads": ({"num_attention_heads": None}, "num_attention_heads"),
    "unknown scoring": ({"scoring_func": "softmax"}, "scoring_func", "softmax"),
    "zero context": ({"max_position_embeddings": 0}, "max_position_embeddings"),
    "a fraction": ({"kv_lora_rank": 511.5}, "kv_lora_rank"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictory_config(target, case):
    changes, *words = CONTRADICTIONS[case]
    edit_config(target, **changes)
    assert_fails(run_model(target), *words)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"text_config": 3}', "[" * 100_000])
def test_config_that_is_no_config(target, text):
    (target / "config.json").write_text(text)
    assert_fails(run_model(target), target / "config.json")


def reading(layers, mask):
    return {"dflash_config": {"target_layer_ids": layers, "mask_token_id": mask}}


PAIRS = {
    "vocabularies differ": ({"vocab_size": 4095}, "4095", "4096"),
    "another hidden size": ({"hidden_size": 128}, "128", "256"),
    "a layer the target lacks": (reading([0, 1, 2, 5], 4093), "5"),
    "mask token outside": (reading([0, 1, 2, 3], 4096), "mask_token_id"),
    "block of one": ({"block_size": 1}, "block_size"),
    "block of 64": ({"block_size": 64}, "block_size"),
}  # fmt: skip


@pytest.mark.parametrize("case", PAIRS)
def test_drafter_that_does_not_fit(drafter, case):
    changes, *words = PAIRS[case]
    edit_config(drafter, **changes)
    assert_fails(run_pair(MODEL, drafter), *words)


# Text.


def test_unknown_chat_template(target):
    """An error for --chat only."""
    (target / "chat_template.jinja").write_text("{{ messages }}")
    assert_fails(run_model(target, "--chat", "hi"), target, "chat template")
    assert generate("--model", target, "--prompt", "x", "--max-tokens", "1")["rounds"] <= 1


def test_no_tokenizer(target):
    """Token ids need none."""
    for name in ("tiktoken.model", "tokenizer.json", "tokenizer_config.json"):
        (target / name).unlink()
    assert_fails(run_model(target, "--prompt", "x"), target)
    assert generate("--model", target, *IDS)["text"] == ""


def test_broken_tokenizer(target):
    (target / "tiktoken.model").write_text("not base64 at all\n")
    assert_fails(run_model(target, "--prompt", "x"), "tiktoken.model")


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
def test_optional_file_that_is_broken(target, name):
    """Not as if there were none: special tokens or stop tokens would get lost."""
    for text in ("", "[]", '{"added_tokens_decoder": 5, "eos_token_id": {}}'):
        (target / name).write_text(text)
        assert_fails(run_model(target, "--prompt", "x"), target, name)
    (target / name).unlink()
    (target / name).symlink_to("nowhere")
    assert_fails(run_model(target, "--prompt", "x"), target / name)


# Output and memory.


@pytest.mark.parametrize(
    "arguments",
    [["generate", *PAIR, *IDS], ["generate", *PAIR, *IDS, "--json"], ["inspect", MODEL],
     ["inspect", GOLDEN / "tree_build.budget8.kdtr"], ["bench", "--op", "rope"], ["--help"],
     ["generate", "--help"]],
    ids=["text", "json", "inspect", "kdtr", "bench", "help", "generate help"],
)  # fmt: skip
def test_output_that_cannot_be_written(arguments):
    with open("/dev/full", "wb") as full:
        run = kdtree(*arguments, stdout=full)
    assert run.returncode == 1
    assert b"stdout" in run.stderr and b"No space left" in run.stderr

    run = kdtree(*arguments, preexec_fn=lambda: os.close(1), stdout=None)
    assert run.returncode == 1 and b"stdout" in run.stderr, run.stderr


def test_reader_that_goes_away():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        run = kdtree("generate", *PAIR, "--prompt", "def f(", "--ignore-eos", stdout=pipe)
    assert run.returncode == 1 and b"stdout" in run.stderr and b"pipe" in run.stderr.lower()


def test_csv_that_cannot_be_written(tmp_path):
    """Found out before measuring."""
    pair = ["--model", "/nowhere", "--prompt-ids", "1"]
    for kind in (["--op", "rope"], ["--decode", *pair], ["--profile", *pair]):
        for path in ("/nowhere/x.csv", tmp_path, "/dev/full"):
            assert_fails(kdtree("bench", *kind, "--csv", path), path)
    assert pathlib.Path("/dev/full").is_char_device() and not list(tmp_path.iterdir())


def test_huge_max_tokens():
    """The context limits the run, and the memory, whatever was asked for."""
    huge = ["--max-tokens", str(2**31 - 1)]
    cases = json.loads((GOLDEN / "tiny_k2_reference.json").read_text())
    case = next(c for c in cases if c["greedy_ids"][-1] in (4065, 4066))
    prompt = ["--prompt-ids", ",".join(map(str, case["prompt_ids"]))]

    def limit():  # the pair, and a cache for one whole context
        resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))

    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = generate(*PAIR, *prompt, *huge, preexec_fn=limit, env=one_thread)
    assert out["token_ids"] == case["greedy_ids"]
    out = generate(*PAIR, *prompt, *huge, "--ignore-eos", "--context", "200")
    assert len(out["prompt_ids"]) + len(out["token_ids"]) == 200
    assert out["finish_reason"] == "length"


def test_context_limit_is_told():
    """Fewer tokens than asked for need a reason."""
    for context, told in (("20", True), ("200", False)):
        limits = ["--max-tokens", "30", "--ignore-eos", "--context", context]
        out = kdtree("generate", *PAIR, "--prompt-ids", "1,2,3", *limits).stdout
        assert (b"ended by the context limit]" in out) == told, out


def test_no_memory():
    """A machine without the memory says so."""
    for mebibytes in (30, 50):

        def limit(size=mebibytes << 20):
            resource.setrlimit(resource.RLIMIT_AS, (size, size))

        assert_fails(run(*PAIR, *IDS, preexec_fn=limit), "memory")


def test_more_threads_than_the_system_has():
    """OpenMP's runtime would end the process with a message of its own."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    refused = run(*PAIR, *IDS, "--threads", "1024", preexec_fn=limit)
    assert_fails(refused, "of 1024", "refused a thread")

    def limit_bench():  # its largest buffer has a GiB
        resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))

    refused = kdtree("bench", "--op", "rope", "--threads", "1024", preexec_fn=limit_bench)
    assert refused.returncode == 1 and b"refused a thread" in refused.stderr, refused.stderr


def test_batch_of_large_trees():
    """Runs in turns, not in memory for all trees at once."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (650 << 20, 650 << 20))

    prompts = ["--prompt-ids", "1,2,3"] * 12
    runs = generate(*PAIR, "--budget", "1024", "--max-tokens", "2", "--threads", "1", *prompts,
                    preexec_fn=limit)  # fmt: skip
    want = generate(*PAIR, "--prompt-ids", "1,2,3", "--max-tokens", "2")["token_ids"]
    assert [run["token_ids"] for run in runs] == [want] * 12


def test_no_thread():
    """Even the thread that waits for Ctrl-C may be refused."""

    def limit():  # enough to start the program, not for one more stack
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 30, 1 << 30))
        resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))

    assert_fails(run(*PAIR, *IDS, preexec_fn=limit), "refused a thread")


def interrupt(arguments, signals, inherited=signal.SIG_DFL):
    """Sends the signals after their delays, to a process that starts with this handling of them."""

    def inherit():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, inherited)

    process = subprocess.Popen([BINARY, "generate", *PAIR, "--ignore-eos", "--max-tokens", "4000",
                                "--prompt", "def f(", *arguments],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=inherit)  # fmt: skip
    for delay, number in signals:
        time.sleep(delay)
        process.send_signal(number)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt(number):
    """Stops at the next round; what was generated is printed."""
    status, out, err = interrupt(["--json"], [(1.5, number)])
    assert (status, err) == (130, b"")
    result = json.loads(out)
    assert result["finish_reason"] == "cancelled"
    assert sum(result["acceptance_lengths"]) + 1 == len(result["token_ids"]) < 4000


def test_interrupt_while_loading():
    status, out, err = interrupt(["--json"], [(0.0, signal.SIGINT)])
    assert status in (130, -signal.SIGINT) and not out and not err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ignored_signals_stay_ignored(number):
    """A shell's background jobs ignore SIGINT: the run goes on to its end."""
    signals = [(0.1, number)] * 5
    status, out, err = interrupt(["--json", "--context", "600"], signals, signal.SIG_IGN)
    assert (status, err) == (0, b"")
    assert json.loads(out)["finish_reason"] == "length"
