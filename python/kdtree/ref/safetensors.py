"""A small reader of safetensors: 8-byte header length, JSON header, little-endian payloads."""

import json
import pathlib

import numpy as np

from .numeric import f32_from_bf16

_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}


def read(path):
    """{name: array}; BF16 becomes fp32, F8_E4M3 stays as uint8 codes, the rest as stored."""
    data = np.fromfile(path, np.uint8)
    header_bytes = int(data[:8].view("<u8")[0])
    header = json.loads(data[8 : 8 + header_bytes].tobytes())
    payload, tensors = data[8 + header_bytes :], {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        array = payload[begin:end].view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
        tensors[name] = f32_from_bf16(array) if entry["dtype"] == "BF16" else array
    return tensors


def read_checkpoint(directory):
    """(config, tensors) of a Hugging Face directory with one or many shards."""
    directory = pathlib.Path(directory)
    config = json.loads((directory / "config.json").read_text())
    tensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors.update(read(path))
    return config, tensors
