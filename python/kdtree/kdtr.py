"""KDTR: the project's portable container of named tensors. Specification: src/kdtr/FORMAT.md.

An implementation of its own in numpy; it shares no code with the C++ one, so that the two can
disagree. The names in square brackets that end each message are the rules of FORMAT.md.

    write("case.kdtr", {"logits": x, "cache": bf16(y)}, {"seed": "7"})
    tensors, meta = read("case.kdtr")
    y = to_f32(tensors["cache"])

numpy has neither bf16 nor f8e4m3: those travel as `Tensor(dtype, codes)`, the rest as ndarray.
"""

from __future__ import annotations

import os
import pathlib
import struct
import tempfile
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from kdtree.crc32c import crc32c
from kdtree.narrow import Tensor, bf16, f8e4m3, to_f32

__all__ = ["KdtrError", "Tensor", "bf16", "f8e4m3", "read", "serialize", "to_f32", "write"]

MAGIC = b"KDTR\r\n\x1a\n"
VERSION = 1
ALIGNMENT = 64
MAX_TENSORS = 1 << 16
MAX_META = 1 << 12
MAX_INDEX_BYTES = 1 << 26
MAX_NAME_BYTES = 255
MAX_VALUE_BYTES = 1 << 20
MAX_RANK = 8
MAX_TENSOR_BYTES = 1 << 48

# The position in this list, counted from 1, is the dtype's code in the file.
DTYPES = {
    "f64": "<f8", "f32": "<f4", "f16": "<f2", "bf16": "<u2", "f8e4m3": "u1",
    "i64": "<i8", "i32": "<i4", "i16": "<i2", "i8": "i1",
    "u64": "<u8", "u32": "<u4", "u16": "<u2", "u8": "u1", "bool": "?",
}  # fmt: skip
DTYPE_NAMES = list(DTYPES)
CODED = ("bf16", "f8e4m3")

HEADER = struct.Struct(
    "<8sIIIIQQ24s"
)  # magic version n_tensors n_meta crc index_bytes file_bytes 0
META_ENTRY = struct.Struct("<II")  # key_bytes value_bytes
TENSOR_ENTRY = struct.Struct("<QIBBH")  # offset crc dtype rank name_bytes


class KdtrError(ValueError):
    """The file, or what was given to write, breaks a rule of the format."""


class _Entry(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int
    crc: int


def _structure_crc(head: bytes) -> int:
    return crc32c(head[:20] + bytes(4) + head[24:])


# ---------------------------------------------------------------------------- shared checks


def _aligned(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT


def _check_name(name: str, n_bytes: int, fail) -> None:
    if not 1 <= n_bytes <= MAX_NAME_BYTES:
        fail("limits", f"a name of {n_bytes} bytes, 1 to {MAX_NAME_BYTES} allowed")
    if any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in name):
        fail("text", f"control character in name {name!r}")


def _tensor_bytes(shape: tuple[int, ...], dtype: str, fail) -> int:
    """Payload bytes. A zero dimension does not excuse the others from the limit."""
    n_bytes = bound = np.dtype(DTYPES[dtype]).itemsize
    for n in shape:
        n_bytes *= n
        bound *= max(n, 1)
    if bound > MAX_TENSOR_BYTES:
        fail("shape", f"shape {list(shape)} of {dtype} is over {MAX_TENSOR_BYTES} bytes")
    return n_bytes


def _failer(path):
    def fail(rule: str, detail: str):
        raise KdtrError(f"{path}: {detail} [{rule}]")

    return fail


# ---------------------------------------------------------------------------- reading


class _Cursor:
    """Reads the index front to back and never past its end."""

    def __init__(self, data: bytes, fail):
        self.data, self.at, self.fail = data, 0, fail

    def take(self, n: int) -> bytes:
        if n > len(self.data) - self.at:
            self.fail("index", f"an entry needs {n} bytes at {self.at} of {len(self.data)}")
        self.at += n
        return self.data[self.at - n : self.at]

    def unpack(self, layout: struct.Struct) -> tuple:
        return layout.unpack(self.take(layout.size))

    def text(self, n: int) -> str:
        raw = self.take(n)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail("text", f"{raw[:64]!r} is not UTF-8")


def _read_header(data: np.ndarray, fail) -> tuple[int, int, int]:
    if data.size < HEADER.size:
        fail("short", f"{data.size} bytes, a header has {HEADER.size}")
    magic, version, n_tensors, n_meta, crc, index_bytes, file_bytes, reserved = HEADER.unpack(
        data[: HEADER.size].tobytes()
    )
    if magic != MAGIC:
        fail("magic", "not a KDTR file")
    if version != VERSION:
        fail("version", f"version {version}, this reader knows {VERSION}")
    if file_bytes != data.size:
        fail("file-size", f"{data.size} bytes, the header says {file_bytes}")
    if n_tensors > MAX_TENSORS or n_meta > MAX_META or index_bytes > MAX_INDEX_BYTES:
        fail("limits", f"{n_tensors} tensors, {n_meta} metadata, index of {index_bytes} bytes")
    if index_bytes > file_bytes - HEADER.size:
        fail("index", f"index of {index_bytes} bytes in a file of {file_bytes}")
    if _structure_crc(data[: HEADER.size + index_bytes].tobytes()) != crc:
        fail("structure-crc", "header or index damaged")
    if any(reserved):
        fail("reserved", "reserved header bytes are not zero")
    return n_tensors, n_meta, index_bytes


def _read_meta(cursor: _Cursor, n_meta: int, fail) -> dict[str, str]:
    meta, previous = {}, ""
    for _ in range(n_meta):
        key_bytes, value_bytes = cursor.unpack(META_ENTRY)
        key = cursor.text(key_bytes)
        _check_name(key, key_bytes, fail)
        if key <= previous:
            fail("order", f"metadata key {key!r} after {previous!r}")
        meta[key] = cursor.text(value_bytes)
        if value_bytes > MAX_VALUE_BYTES:
            fail("limits", f"metadata {key!r}: a value of {value_bytes} bytes")
        previous = key
    return meta


def _read_entry(cursor: _Cursor, fail) -> _Entry:
    offset, crc, code, rank, name_bytes = cursor.unpack(TENSOR_ENTRY)
    if rank > MAX_RANK:
        fail("rank", f"rank {rank}, at most {MAX_RANK} allowed")
    shape = struct.unpack(f"<{rank}Q", cursor.take(8 * rank))
    name = cursor.text(name_bytes)
    _check_name(name, name_bytes, fail)
    if not 1 <= code <= len(DTYPE_NAMES):
        fail("dtype", f"tensor {name!r}: unknown dtype code {code}")
    dtype = DTYPE_NAMES[code - 1]
    return _Entry(name, dtype, shape, offset, _tensor_bytes(shape, dtype, fail), crc)


def _read_structure(data: np.ndarray, fail) -> tuple[list[_Entry], dict[str, str]]:
    n_tensors, n_meta, index_bytes = _read_header(data, fail)
    end = HEADER.size + index_bytes
    cursor = _Cursor(data[HEADER.size : end].tobytes(), fail)
    meta = _read_meta(cursor, n_meta, fail)
    entries, previous = [], ""
    for _ in range(n_tensors):
        entry = _read_entry(cursor, fail)
        if entry.name <= previous:
            fail("order", f"tensor {entry.name!r} after {previous!r}")
        if entry.offset != _aligned(end):
            fail("offset", f"tensor {entry.name!r} at {entry.offset}, expected {_aligned(end)}")
        if entry.n_bytes > data.size - entry.offset:
            fail(
                "bounds",
                f"tensor {entry.name!r}: {entry.n_bytes} bytes at {entry.offset} of {data.size}",
            )
        if data[end : entry.offset].any():
            fail("padding", f"bytes before tensor {entry.name!r} are not zero")
        entries.append(entry)
        previous, end = entry.name, entry.offset + entry.n_bytes
    if cursor.at != index_bytes:
        fail("index", f"{index_bytes - cursor.at} bytes of the index are left over")
    if data.size != _aligned(end):
        fail("trailing", f"{data.size} bytes, the content ends at {_aligned(end)}")
    if data[end:].any():
        fail("padding", "bytes after the content are not zero")
    return entries, meta


def read(path, verify: bool = True) -> tuple[dict[str, np.ndarray | Tensor], dict[str, str]]:
    """(tensors by name, metadata). `verify=False` checks the structure but not the payloads."""
    fail = _failer(path)
    data = np.fromfile(path, np.uint8)
    entries, meta = _read_structure(data, fail)
    tensors: dict[str, np.ndarray | Tensor] = {}
    for e in entries:
        payload = data[e.offset : e.offset + e.n_bytes]
        if verify and crc32c(payload) != e.crc:
            fail("payload-crc", f"tensor {e.name!r} is damaged")
        if verify and e.dtype == "bool" and (payload > 1).any():
            fail("bool", f"tensor {e.name!r} has a byte other than 0 and 1")
        array = payload.view(DTYPES[e.dtype]).reshape(e.shape)
        tensors[e.name] = Tensor(e.dtype, array) if e.dtype in CODED else array
    return tensors, meta


# ---------------------------------------------------------------------------- writing


def _as_payload(name: str, value: np.ndarray | Tensor, fail) -> tuple[str, np.ndarray]:
    """(dtype name, little-endian C-ordered array)."""
    if isinstance(value, Tensor):
        if value.dtype not in CODED or value.codes.dtype != np.dtype(DTYPES[value.dtype]):
            fail("dtype", f"tensor {name!r}: {value.dtype} codes as {value.codes.dtype}")
        return value.dtype, np.asarray(value.codes, order="C")
    if not isinstance(value, (np.ndarray, np.generic)):
        fail("dtype", f"tensor {name!r}: {type(value).__name__}, expected an ndarray")
    little = value.dtype.newbyteorder("<")
    for dtype, layout in DTYPES.items():
        if dtype not in CODED and little == np.dtype(layout):
            return dtype, np.asarray(value, dtype=little, order="C")
    fail("dtype", f"tensor {name!r}: {value.dtype} has no KDTR dtype")


def _encode_meta(meta: Mapping[str, str], fail) -> bytes:
    index = bytearray()
    for key, value in sorted(meta.items()):
        key_raw, value_raw = _encode_text(key, fail), _encode_text(value, fail)
        _check_name(key, len(key_raw), fail)
        if len(value_raw) > MAX_VALUE_BYTES:
            fail("limits", f"metadata {key!r}: a value of {len(value_raw)} bytes")
        index += META_ENTRY.pack(len(key_raw), len(value_raw)) + key_raw + value_raw
    return bytes(index)


def _encode_text(text: str, fail) -> bytes:
    if not isinstance(text, str):
        fail("text", f"{text!r} is not a string")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        fail("text", f"{text!r} is not encodable as UTF-8")


def _entry_bytes(name: str, rank: int, fail) -> int:
    raw = _encode_text(name, fail)
    _check_name(name, len(raw), fail)
    return TENSOR_ENTRY.size + 8 * rank + len(raw)


def serialize(tensors: Mapping[str, np.ndarray | Tensor], meta: Mapping[str, str] | None = None,
              path="KDTR") -> bytes:  # fmt: skip
    """The bytes of the one file that holds this content; `path` names it in errors."""
    fail = _failer(path)
    items = [(name, *_as_payload(name, tensors[name], fail)) for name in sorted(tensors)]
    index = bytearray(_encode_meta(meta or {}, fail))
    n_meta = len(meta or {})
    index_bytes = len(index) + sum(_entry_bytes(name, a.ndim, fail) for name, _, a in items)
    if len(items) > MAX_TENSORS or n_meta > MAX_META or index_bytes > MAX_INDEX_BYTES:
        fail("limits", f"{len(items)} tensors, {n_meta} metadata, index of {index_bytes} bytes")
    end = HEADER.size + index_bytes
    payloads = bytearray(_aligned(end) - end)
    for name, dtype, array in items:
        if array.ndim > MAX_RANK:
            fail("rank", f"tensor {name!r}: rank {array.ndim}, at most {MAX_RANK} allowed")
        _tensor_bytes(array.shape, dtype, fail)
        payload = array.tobytes()
        if dtype == "bool" and (np.frombuffer(payload, np.uint8) > 1).any():
            fail("bool", f"tensor {name!r} has a byte other than 0 and 1")
        raw = name.encode("utf-8")
        index += TENSOR_ENTRY.pack(end + len(payloads), crc32c(payload),
                                   DTYPE_NAMES.index(dtype) + 1, array.ndim, len(raw))  # fmt: skip
        index += struct.pack(f"<{array.ndim}Q", *array.shape) + raw
        payloads += payload + bytes(_aligned(len(payload)) - len(payload))
    fields = (index_bytes, end + len(payloads), bytes(24))
    head = HEADER.pack(MAGIC, VERSION, len(items), n_meta, 0, *fields) + index
    crc = _structure_crc(head)
    return b"".join([head[:20], struct.pack("<I", crc), head[24:], payloads])


def write(path, tensors: Mapping[str, np.ndarray | Tensor],
          meta: Mapping[str, str] | None = None) -> None:  # fmt: skip
    """Writes the file, or leaves an existing one as it was. Equal content gives equal bytes."""
    path = pathlib.Path(path)
    data = serialize(tensors, meta, path)
    fd, temporary = tempfile.mkstemp(prefix=path.name + ".tmp.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            umask = os.umask(0)
            os.umask(umask)
            os.fchmod(fd, 0o666 & ~umask)
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
