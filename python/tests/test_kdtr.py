"""The numpy KDTR reader and writer on their own. The shared corpus is in test_kdtr_corpus.py."""

import os
import pathlib
import re

import numpy as np
import pytest

from kdtree import kdtr
from kdtree.crc32c import crc32c

ROOT = pathlib.Path(__file__).resolve().parents[2]


def crc32c_by_definition(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def every_dtype() -> dict:
    rng = np.random.default_rng(1)
    tensors = {}
    for dtype, layout in kdtr.DTYPES.items():
        raw = rng.integers(0, 2 if dtype == "bool" else 256, (3, 5, np.dtype(layout).itemsize))
        array = raw.astype(np.uint8).view(layout).reshape(3, 5)
        tensors[dtype] = kdtr.Tensor(dtype, array) if dtype in kdtr.CODED else array
    return tensors


def same(a, b) -> bool:
    if isinstance(a, kdtr.Tensor) or isinstance(b, kdtr.Tensor):
        return type(a) is type(b) and a.dtype == b.dtype and same(a.codes, b.codes)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_crc32c_known_values():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


@pytest.mark.parametrize("n", [*range(18), 255, 256, 257, 1023, 4099])
def test_crc32c_equals_definition(n):
    data = np.random.default_rng(n).integers(0, 256, n, dtype=np.uint8).tobytes()
    assert crc32c(data) == crc32c_by_definition(data)


def test_round_trip_every_dtype(tmp_path):
    path = tmp_path / "all.kdtr"
    meta = {"seed": "1", "größe": "ü\n\0 any text", "empty": ""}
    kdtr.write(path, every_dtype(), meta)
    tensors, read_meta = kdtr.read(path)
    assert read_meta == meta
    assert list(tensors) == sorted(kdtr.DTYPES)
    for name, value in every_dtype().items():
        assert same(tensors[name], value), name


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2,) * 8, (64,), (65,)])
def test_round_trip_shapes(tmp_path, shape):
    path = tmp_path / "shape.kdtr"
    want = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    kdtr.write(path, {"x": want, "y": want.astype(np.uint8)})
    got, meta = kdtr.read(path)
    assert same(got["x"], want) and same(got["y"], want.astype(np.uint8)) and meta == {}
    assert path.stat().st_size % 64 == 0


def test_layout_does_not_depend_on_memory_or_order():
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    y = np.ones(2, np.float64)
    want = kdtr.serialize({"x": x, "y": y}, {"a": "1", "b": "2"})
    assert kdtr.serialize({"y": y, "x": x}, {"b": "2", "a": "1"}) == want
    assert kdtr.serialize({"x": np.asfortranarray(x), "y": y}, {"a": "1", "b": "2"}) == want
    assert kdtr.serialize({"x": x.astype(">i4"), "y": y}, {"a": "1", "b": "2"}) == want


def test_example_of_the_specification():
    text = (ROOT / "src/kdtr/FORMAT.md").read_text()
    image = bytearray(192)
    for line in re.findall(r"^([0-9a-f]{2}  [0-9a-f ]+?)(?:   .*)?$", text, re.MULTILINE):
        raw = bytes.fromhex(line[2:])
        at = int(line[:2], 16)
        image[at : at + len(raw)] = raw
    assert image[:4] == b"KDTR"
    assert kdtr.serialize({"a": np.array([1, -2, 3], np.int16)}, {"k": "v"}) == image


def test_every_bit_flip_is_rejected(tmp_path):
    path = tmp_path / "flip.kdtr"
    good = kdtr.serialize({"a": np.array([1, -2, 3], np.int16), "b": np.array([True])}, {"k": "v"})
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        with pytest.raises(kdtr.KdtrError):
            kdtr.read(path)


def test_every_truncation_and_extension_is_rejected(tmp_path):
    path = tmp_path / "cut.kdtr"
    good = kdtr.serialize({"a": np.zeros(3, np.int16)}, {"k": "v"})
    for bad in [good[:n] for n in range(len(good))] + [good + bytes(n) for n in (1, 64)]:
        path.write_bytes(bad)
        with pytest.raises(kdtr.KdtrError):
            kdtr.read(path)


@pytest.mark.parametrize(
    "tensors, meta, rule",
    [
        ({"": np.zeros(1)}, {}, "limits"),
        ({"x" * 256: np.zeros(1)}, {}, "limits"),
        ({"a\nb": np.zeros(1)}, {}, "text"),
        ({"\x9f": np.zeros(1)}, {}, "text"),
        ({"\ud800": np.zeros(1)}, {}, "text"),
        ({"x": np.zeros(1, np.complex64)}, {}, "dtype"),
        ({"x": [1, 2]}, {}, "dtype"),
        ({"x": kdtr.Tensor("bf16", np.zeros(1, np.uint8))}, {}, "dtype"),
        ({"x": np.array([2], np.uint8).view(bool)}, {}, "bool"),
        ({"x": np.zeros((1,) * 9)}, {}, "rank"),
        ({}, {"k": "v" * (2**20 + 1)}, "limits"),
        ({}, {"k": 1}, "text"),
        ({}, {str(i): "" for i in range(4097)}, "limits"),
    ],
)
def test_writer_refuses(tmp_path, tensors, meta, rule):
    path = tmp_path / "out.kdtr"
    path.write_bytes(b"old")
    with pytest.raises(kdtr.KdtrError, match=rf"out\.kdtr.*\[{rule}\]"):
        kdtr.write(path, tensors, meta)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.kdtr"]


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "out.kdtr"
    path.write_bytes(b"old")

    def broken(fd):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        kdtr.write(path, {"x": np.zeros(3)})
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.kdtr"]


def test_bf16_every_code_and_ties():
    codes = np.arange(65536, dtype=np.uint16)
    values = kdtr.to_f32(kdtr.Tensor("bf16", codes))
    back = kdtr.bf16(values).codes
    is_nan = np.isnan(values)
    assert (back[~is_nan] == codes[~is_nan]).all()
    assert np.isnan(kdtr.to_f32(kdtr.Tensor("bf16", back)))[is_nan].all()
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, 3.4e38], np.float32)
    assert kdtr.to_f32(kdtr.bf16(ties)).tolist() == [1.0, 1 + 2**-6, np.inf]


def test_f8e4m3_every_code_nearest_and_saturation():
    codes = np.arange(256, dtype=np.uint8)
    values = kdtr.to_f32(kdtr.Tensor("f8e4m3", codes))
    is_nan = np.isnan(values)
    assert codes[is_nan].tolist() == [0x7F, 0xFF]
    assert (kdtr.f8e4m3(values).codes == codes).all()
    finite = values[~is_nan]
    x = np.random.default_rng(2).normal(0, 60, 4000).astype(np.float32)
    got = kdtr.to_f32(kdtr.f8e4m3(x)).astype(np.float64)
    nearest = np.abs(finite[None].astype(np.float64) - x[:, None]).min(1)
    assert (np.abs(got - x) == nearest).all()
    ties = np.array([2**-10, 3 * 2**-10, 17.0, 19.0, 1e9, -np.inf], np.float32)
    assert kdtr.to_f32(kdtr.f8e4m3(ties)).tolist() == [0.0, 2**-8, 16.0, 20.0, 448.0, -448.0]


@pytest.mark.parametrize("narrow", [kdtr.bf16, kdtr.f8e4m3])
def test_narrowing_takes_float32_only(narrow):
    assert narrow(np.float32(1.5)).codes.shape == ()
    with pytest.raises(TypeError):
        narrow(np.ones(2))
