"""Judges the shared KDTR corpus with the numpy reader, as kdtr_corpus_test.cpp does in C++.

Both writers also have to give every good file's very bytes, so what one writes the other reads.
"""

import pathlib

import numpy as np
import pytest

from kdtree import kdtr
from kdtree.golden import make_kdtr_corpus

CORPUS = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/kdtr_corpus"
MANIFEST = [line.split("\t") for line in (CORPUS / "manifest.tsv").read_text().splitlines()[1:]]
RULES = {rule for _, _, rule, _ in MANIFEST}


def test_committed_corpus_is_what_the_script_makes(tmp_path):
    make_kdtr_corpus.main(tmp_path)
    made = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    committed = {p.name: p.read_bytes() for p in CORPUS.iterdir()}
    assert made == committed
    assert len(made) == len(MANIFEST) + 1


def test_corpus_covers_every_rule_of_the_specification():
    text = (CORPUS.parents[2] / "src/kdtr/FORMAT.md").read_text()
    table = text.split("## What a reader must reject")[1].split("## Versions")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    assert RULES - {"-"} == set(rows) - {"rule"}


@pytest.mark.parametrize(
    "name, verdict, rule", [m[:3] for m in MANIFEST], ids=[m[0] for m in MANIFEST]
)
def test_verdict(name, verdict, rule):
    def judge(verify: bool):
        try:
            kdtr.read(CORPUS / name, verify=verify)
        except kdtr.KdtrError as error:
            assert name in str(error)
            return str(error).rsplit("[", 1)[1].rstrip("]")
        return "-"

    assert judge(verify=False) == (rule if verdict == "open" else "-")
    assert judge(verify=True) == rule


@pytest.mark.parametrize("name", [m[0] for m in MANIFEST if m[1] == "accept"])
def test_writing_a_good_file_again_gives_its_bytes(name):
    path = CORPUS / name
    assert kdtr.serialize(*kdtr.read(path)) == path.read_bytes()


def test_values_of_every_dtype():
    tensors, meta = kdtr.read(CORPUS / "good_every_dtype.kdtr")
    assert meta == {"seed": "0"}
    values = {
        name: kdtr.to_f32(t) if isinstance(t, kdtr.Tensor) else t for name, t in tensors.items()
    }
    assert values["f64"].tolist() == [1.5, 0, np.inf] and np.signbit(values["f64"][1])
    assert values["f32"][:2].tolist() == [1.5, -2.25] and np.isnan(values["f32"][2])
    for name in ("f16", "bf16", "f8e4m3"):
        assert values[name][:2].tolist() == [1, -2] and np.isnan(values[name][2]), name
    for bits in (8, 16, 32, 64):
        assert values[f"i{bits}"].tolist() == [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1]
        assert values[f"u{bits}"].tolist() == [0, 2**bits - 1]
    assert values["bool"].tolist() == [False, True]
    dtypes = {n: t.dtype if isinstance(t, kdtr.Tensor) else t.dtype.str for n, t in tensors.items()}
    assert dtypes["bool"] == "|b1" and dtypes["f16"] == "<f2" and dtypes["bf16"] == "bf16"
