"""Runs the `kdtree` binary for the black-box tests: build/kdtree, or the one under KDT_BUILD."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = ROOT / os.environ.get("KDT_BUILD", "build") / "kdtree"
MODEL = ROOT / "models" / "tiny-k2"
DRAFT = ROOT / "models" / "tiny-k2-dflash"
GOLDEN = ROOT / "tests" / "golden"
PAIR = ["--model", MODEL, "--draft", DRAFT]

needs_binary = pytest.mark.skipif(
    not BINARY.exists(), reason=f"{BINARY} is not built: run `make build` or set KDT_BUILD"
)


def kdtree(*arguments, timeout=60, **options):
    """The finished process, stdout and stderr as bytes."""
    pipe = subprocess.PIPE
    options = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe, **options}
    command = [BINARY, *(a if isinstance(a, bytes) else str(a) for a in arguments)]
    return subprocess.run(command, timeout=timeout, **options)


def generate(*arguments, **options):
    """What `kdtree generate --json` prints, parsed; the run must succeed and stderr be empty."""
    run = kdtree("generate", "--json", *arguments, **options)
    assert (run.returncode, run.stderr) == (0, b""), run.stderr.decode()
    return json.loads(run.stdout)


def assert_fails(run, *words, status=1):
    """One complaint: this status, no stdout, at most 3 lines on stderr, the words in line 1."""
    message = run.stderr.decode()
    lines = message.splitlines()
    assert run.returncode == status, f"exit status {run.returncode}, stderr: {message}"
    assert not run.stdout, run.stdout[:200]
    assert 1 <= len(lines) <= 3, message
    assert lines[0].startswith("kdtree: "), message
    for word in words:
        assert str(word) in lines[0], f"'{word}' is not in: {lines[0]}"
    for crash in ("terminate", "Assertion", "internal error", "Traceback", "what()"):
        assert crash not in message


def copy_checkpoint(source, directory):
    """A copy whose files may be replaced."""
    return pathlib.Path(shutil.copytree(source, directory / source.name))


def edit_config(directory, **changes):
    """Sets keys of config.json, in the nested text_config where one exists; None removes a key."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    section = config.get("text_config", config)
    for key, value in changes.items():
        if value is None:
            section.pop(key, None)
        else:
            section[key] = value
    path.write_text(json.dumps(config))
