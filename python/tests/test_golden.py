"""The committed golden bundles are what the generators make: inputs and integers byte for byte,
floats within 2 ulp or the tolerance function."""

import functools
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from kdtree import kdtr
from kdtree.golden import seeded
from kdtree.golden.catalog import MODULES
from kdtree.tolerance import lse_tolerance, relative_error, tolerance, ulp_distance

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden"
MAX_BYTES = 8 << 20


@functools.cache
def made_cases(module):
    return list(MODULES[module].cases())


def raw(tensor):
    """(dtype, shape, bytes) of a stored tensor."""
    if isinstance(tensor, kdtr.Tensor):
        return tensor.dtype, tensor.codes.shape, tensor.codes.tobytes()
    return tensor.dtype.str, tensor.shape, tensor.tobytes()


def assert_same_floats(name, made, stored):
    assert made.shape == stored.shape and made.dtype == stored.dtype, name
    assert not np.isnan(stored).any() and not np.isnan(made).any(), name
    if made.dtype == np.float32 and (ulp_distance(made, stored) <= 2).all():
        return
    kind = {4: "f32", 8: "f64"}[made.dtype.itemsize]
    if name.endswith(": lse"):
        finite = np.isfinite(stored)
        assert (made[~finite] == stored[~finite]).all(), name
        assert np.abs(made[finite] - stored[finite]).max() <= lse_tolerance(kind), name
        return
    assert relative_error(made, stored) <= tolerance(kind, 1024), name


@pytest.mark.parametrize("module", MODULES)
def test_bundles_are_reproduced(module):
    ops, names = set(), set()
    for case in made_cases(module):
        ops.add(case.op)
        names.add(case.file_name)
        tensors, meta = kdtr.read(GOLDEN / case.file_name)
        made = case.tensors()
        assert tensors.keys() == made.keys(), case.file_name
        for key, value in case.metadata().items():
            assert key == "numpy" or meta[key] == value, (case.file_name, key)
        for name, value in made.items():
            is_float = not isinstance(value, kdtr.Tensor) and value.dtype.kind == "f"
            if is_float and name in case.outputs:
                assert_same_floats(f"{case.file_name}: {name}", value, tensors[name])
            else:
                assert raw(value) == raw(tensors[name]), (case.file_name, name)
    assert names == {path.name for op in ops for path in GOLDEN.glob(f"{op}.*.kdtr")}


def test_committed_data_stays_small():
    assert sum(path.stat().st_size for path in GOLDEN.glob("*.kdtr")) < MAX_BYTES


def test_seeded_values_are_the_documented_formula():
    """The example of tests/golden/README.md, element by element in plain Python."""
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # Philox block 0 of seed 0
    expected = []
    for word in words:
        total = sum(word.to_bytes(4, "little")) - 510
        expected.append(np.float32(total) * (np.float32(0.05) / np.float32(148)))
    made = seeded.seeded_f32(0, (2, 2), 0.05)
    assert made.dtype == np.float32 and made.reshape(-1).tolist() == [float(x) for x in expected]
    codes = seeded.Seeded(0, (2, 2), 0.05).make().codes
    assert [hex(x) for x in codes.reshape(-1)] == ["0x3cd2", "0x3d5b", "0x3b90", "0x3cdd"]


def test_seeded_statistics():
    x = seeded.seeded_f32(3, (100000,), 2.0)
    assert abs(x.mean()) < 0.03 and abs(x.std() - 2) < 0.02
    below = seeded.seeded_below(4, (70000,), 7)
    assert np.bincount(below, minlength=7).min() > 9500 and below.max() == 6
    assert sorted(seeded.seeded_permutation(5, 50)) == list(range(50))


def test_portable_functions_are_accurate():
    x = np.linspace(-600, 1, 20001)
    assert np.abs(seeded.portable_exp(x) / np.exp(x) - 1).max() < 1e-15
    y = np.exp(np.linspace(0.01, 40, 2001))
    assert max(abs(seeded.portable_log(v) / np.log(v) - 1) for v in y) < 1e-15


def test_case_names_are_unique():
    names = [case.file_name for module in MODULES for case in made_cases(module)]
    assert len(names) == len(set(names))


def run_cli(*args):
    command = [sys.executable, "-m", "kdtree.golden", *map(str, args)]
    env = {**os.environ, "PYTHONPATH": str(GOLDEN.parents[1] / "python")}
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_command_writes_the_named_bundles(tmp_path):
    done = run_cli("lse_merge", "kv_commit", "--out", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    expected = [p.name for op in ("kv_commit", "lse_merge") for p in GOLDEN.glob(f"{op}.*.kdtr")]
    written = sorted((tmp_path / "new").iterdir())
    assert [path.name for path in written] == sorted(expected)
    for path in written:
        assert kdtr.read(path)[1]["op"] == path.name.split(".")[0]
    unknown = run_cli("no_such_op", "--out", tmp_path)
    assert unknown.returncode == 2 and "no generator for no_such_op" in unknown.stderr
