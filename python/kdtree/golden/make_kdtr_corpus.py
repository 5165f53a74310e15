"""Writes the KDTR corpus: small good and bad files that every implementation must judge alike.

    python -m kdtree.golden.make_kdtr_corpus [DIR]     (default tests/golden/kdtr_corpus)

Files are put together field by field here, not by the writer under test; only the checksum is
shared. manifest.tsv says of each file: its verdict (`accept`; `open`: rejected when opened;
`verify`: opens, rejected when its payloads are checked), the broken rule of FORMAT.md, and why.
"""

import pathlib
import struct
import sys
from typing import NamedTuple

from kdtree.crc32c import crc32c


ROOT = pathlib.Path(__file__).resolve().parents[3]
CODES = {
    "f64": 1, "f32": 2, "f16": 3, "bf16": 4, "f8e4m3": 5, "i64": 6, "i32": 7, "i16": 8, "i8": 9,
    "u64": 10, "u32": 11, "u16": 12, "u8": 13, "bool": 14,
}  # fmt: skip


class T(NamedTuple):
    """One tensor entry; None means the right value."""

    name: str | bytes
    dtype: str
    shape: tuple
    payload: bytes
    offset: int | None = None
    crc: int | None = None
    code: int | None = None
    rank: int | None = None
    name_bytes: int | None = None


def raw(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def up(n: int) -> int:
    return -(-n // 64) * 64


def build(
    tensors=(), meta=(), *, magic=b"KDTR\r\n\x1a\n", version=1, n_tensors=None, n_meta=None,
    structure_crc=None, index_bytes=None, file_bytes=None, reserved=bytes(24), index_tail=b"",
    fill=b"\0", tail=b"", key_bytes=None, value_bytes=None,
) -> bytes:  # fmt: skip
    """The file's bytes, with any field replaced by a wrong one and the CRC made right again."""
    index = b""
    for key, value in meta:
        key, value = raw(key), raw(value)
        index += struct.pack("<II", len(key) if key_bytes is None else key_bytes,
                             len(value) if value_bytes is None else value_bytes)  # fmt: skip
        index += key + value
    size = (
        len(index)
        + len(index_tail)
        + sum(16 + 8 * len(t.shape) + len(raw(t.name)) for t in tensors)
    )
    body = fill * (up(64 + size) - (64 + size))
    for t in tensors:
        name = raw(t.name)
        at = 64 + size + len(body)
        index += struct.pack(
            "<QIBBH",
            at if t.offset is None else t.offset,
            crc32c(t.payload) if t.crc is None else t.crc,
            CODES[t.dtype] if t.code is None else t.code,
            len(t.shape) if t.rank is None else t.rank,
            len(name) if t.name_bytes is None else t.name_bytes,
        )
        index += struct.pack(f"<{len(t.shape)}Q", *t.shape) + name
        body += t.payload + fill * (up(len(t.payload)) - len(t.payload))
    index += index_tail
    body += tail
    size = len(index) if index_bytes is None else index_bytes
    total = 64 + len(index) + len(body) if file_bytes is None else file_bytes

    def header(crc: int) -> bytes:
        counts = (len(tensors) if n_tensors is None else n_tensors,
                  len(meta) if n_meta is None else n_meta)  # fmt: skip
        return struct.pack("<8sIIIIQQ24s", magic, version, *counts, crc, size, total, reserved)

    crc = (
        crc32c((header(0) + index + body)[: 64 + size]) if structure_crc is None else structure_crc
    )
    return header(crc) + index + body


def u8(name, n=3, **edit) -> T:
    return T(name, "u8", (n,), bytes(range(1, n + 1)), **edit)


def every_dtype() -> list[T]:
    """Two or three telling elements of each dtype; tests on both sides hold the same literals."""
    payloads = {
        "f64": struct.pack("<3d", 1.5, -0.0, float("inf")),
        "f32": struct.pack("<3f", 1.5, -2.25, float("nan")),
        "f16": struct.pack("<3H", 0x3C00, 0xC000, 0x7E00),  # 1, -2, NaN
        "bf16": struct.pack("<3H", 0x3F80, 0xC000, 0x7FC0),
        "f8e4m3": bytes([0x38, 0xC0, 0x7F]),
        "i64": struct.pack("<2q", -(2**63), 2**63 - 1),
        "i32": struct.pack("<2i", -(2**31), 2**31 - 1),
        "i16": struct.pack("<2h", -(2**15), 2**15 - 1),
        "i8": struct.pack("<2b", -128, 127),
        "u64": struct.pack("<2Q", 0, 2**64 - 1),
        "u32": struct.pack("<2I", 0, 2**32 - 1),
        "u16": struct.pack("<2H", 0, 2**16 - 1),
        "u8": bytes([0, 255]),
        "bool": bytes([0, 1]),
    }
    shape = lambda d: (2,) if d[0] in "iu" or d == "bool" else (3,)  # noqa: E731
    return [T(d, d, shape(d), payloads[d]) for d in sorted(payloads)]


def good_files():
    a = T("a", "i16", (3,), struct.pack("<3h", 1, -2, 3))
    yield "example", build([a], [("k", "v")]), "the example of FORMAT.md"
    yield "empty", build(), "no tensors, no metadata"
    yield "meta_only", build((), [("seed", "7"), ("what", "x")]), "metadata alone"
    yield "every_dtype", build(every_dtype(), [("seed", "0")]), "all fourteen dtypes"
    yield "scalar", build([T("s", "f64", (), struct.pack("<d", 2.5))]), "rank 0"
    yield "rank8", build([T("r", "u8", (1, 2, 1, 3, 1, 1, 2, 1), bytes(12))]), "rank 8"
    empty = [T("a", "f32", (0,), b""), T("c", "i64", (3, 0, 2), b""), T("d", "u8", (2**40, 0), b"")]
    yield "zero_size", build([empty[0], u8("b"), *empty[1:]]), "empty tensors around another"
    yield "only_zero_size", build([T("a", "bool", (0,), b"")]), "an empty tensor alone"
    sizes = (1, 63, 64, 65, 128)
    yield (
        "sizes",
        build([T(f"n{n:03}", "u8", (n,), bytes([n]) * n) for n in sizes]),
        "around 64 bytes",
    )
    yield "name_255", build([u8("n" * 255)], [("k" * 255, "")]), "the longest names"
    yield "index_128", build([u8("n" * 40)]), "an index that ends on a multiple of 64"
    edges = "\u00a0 \u07ff \u0800 \ud7ff \ue000 \uffff \U00010000 \U0010ffff".split(" ")
    yield (
        "utf8_edges",
        build([u8(c) for c in edges], [(c, c) for c in edges]),
        "edges of UTF-8, in order",
    )
    yield (
        "prefix_names",
        build([u8("a"), u8("a "), u8("a.b"), u8("aa"), u8("b")]),
        "prefixes sort first",
    )
    yield (
        "value_any_text",
        build((), [("k", "line\nnul\0esc\x1b[31m\x7f\x85 ü"), ("z", "")]),
        "free values",
    )
    yield "many", build([u8(f"{i:02}", 1) for i in range(40)]), "forty tensors"
    limit = T("a", "u8", (0, 2**48), b"")
    yield "largest_empty_shape", build([limit]), "exactly 2^48 with the zero counted as one"


def bad_headers():
    one = [u8("a")]
    image = build(one, [("k", "v")])
    for n in (0, 7, 8, 63):
        yield f"cut_{n}", image[:n], "short", f"{n} bytes"
    for n in (64, 90, 128, 191):
        yield f"cut_{n}", image[:n], "file-size", f"cut at byte {n}"
    yield "grown", image + bytes(64), "file-size", "64 zero bytes appended"
    yield "magic_text_mode", build(one, magic=b"KDTR\n\x1a\n\0"), "magic", "line ends translated"
    yield "magic_zip", build(one, magic=b"PK\3\4\0\0\0\0"), "magic", "another format"
    for version in (0, 2, 0x01000000, 2**32 - 1):
        yield f"version_{version}", build(one, version=version), "version", f"version {version}"
    yield "file_bytes_less", build(one, file_bytes=128), "file-size", "header says less"
    yield "file_bytes_huge", build(one, file_bytes=2**64 - 1), "file-size", "header says 2^64 - 1"
    yield "n_tensors_65537", build(one, n_tensors=65537), "limits", "one tensor over the limit"
    yield "n_tensors_max", build(one, n_tensors=2**32 - 1), "limits", "2^32 - 1 tensors"
    yield "n_tensors_limit", build(one, n_tensors=65536), "index", "the most tensors, one present"
    yield "n_tensors_less", build([u8("a"), u8("b")], n_tensors=1), "index", "an entry not counted"
    yield "n_meta_4097", build(one, n_meta=4097), "limits", "one metadata entry over the limit"
    yield "n_meta_more", build((), [("k", "v")], n_meta=2), "index", "metadata runs into the end"
    yield "index_bytes_over", build(one, index_bytes=2**26 + 1), "limits", "index over its limit"
    yield (
        "index_bytes_max",
        build(one, index_bytes=2**64 - 1),
        "limits",
        "64 + index_bytes overflows",
    )
    yield "index_bytes_file", build(one, index_bytes=129), "index", "index past the end of the file"
    yield "index_bytes_less", build(one, index_bytes=24), "index", "entry cut by the index's end"
    yield "index_left_over", build(one, index_tail=b"\0"), "index", "a byte after the last entry"
    yield "crc_field", build(one, structure_crc=0), "structure-crc", "zero in its place"
    yield "reserved", build(one, reserved=b"\1" + bytes(23)), "reserved", "first reserved byte"
    yield (
        "reserved_last",
        build(one, reserved=bytes(23) + b"\x80"),
        "reserved",
        "last reserved byte",
    )
    for name, at in (("n_tensors", 12), ("n_meta", 16), ("crc", 20), ("reserved", 50), ("key", 72),
                     ("dtype", 86), ("dim", 90), ("name", 98)):  # fmt: skip
        flipped = bytearray(image)
        flipped[at] ^= 1
        yield f"flip_{name}", bytes(flipped), "structure-crc", f"lowest bit of byte {at} flipped"


def bad_text():
    broken = {
        "continuation": b"\x80", "overlong2": b"\xc0\x80", "overlong2b": b"\xc1\xbf",
        "overlong3": b"\xe0\x9f\xbf", "overlong4": b"\xf0\x8f\xbf\xbf",
        "surrogate": b"\xed\xa0\x80", "surrogate_last": b"\xed\xbf\xbf",
        "above": b"\xf4\x90\x80\x80", "f5": b"\xf5\x80\x80\x80", "ff": b"\xff",
        "cut2": b"a\xc3", "cut3": b"a\xe2\x82", "cut4": b"a\xf0\x9f\x98", "latin1": b"gr\xf6\xdfe",
    }  # fmt: skip
    for what, name in broken.items():
        yield f"utf8_{what}", build([u8(name)]), "text", f"tensor name {name!r}"
    yield "utf8_key", build((), [(b"\xff", "v")]), "text", "metadata key"
    yield "utf8_value", build((), [("k", b"v\xed\xa0\x80")]), "text", "metadata value"
    controls = {
        "nul": "a\0", "newline": "a\nb", "escape": "\x1b[2J", "unit": "\x1f", "delete": "\x7f",
        "c1_first": "\x80", "c1_last": "\x9f",
    }  # fmt: skip
    for what, name in controls.items():
        yield f"control_{what}", build([u8(name)]), "text", f"tensor name {name!r}"
    yield "control_key", build((), [("a\tb", "v")]), "text", "metadata key with a tab"
    yield "name_empty", build([u8("")]), "limits", "empty tensor name"
    yield "name_256", build([u8("n" * 256)]), "limits", "a name of 256 bytes"
    yield "name_bytes_max", build([u8("a", name_bytes=65535)]), "index", "name past the index"
    yield "key_empty", build((), [("", "v")]), "limits", "empty key"
    yield "key_256", build((), [("k" * 256, "v")]), "limits", "a key of 256 bytes"
    yield (
        "key_bytes_max",
        build((), [("k", "v")], key_bytes=2**32 - 1),
        "index",
        "key past the index",
    )
    yield (
        "value_bytes_max",
        build((), [("k", "v")], value_bytes=2**32 - 1),
        "index",
        "value past it",
    )
    yield "names_equal", build([u8("a"), u8("a")]), "order", "duplicate tensor name"
    yield "names_apart", build([u8("a"), u8("b"), u8("a")]), "order", "duplicate not side by side"
    yield "names_descend", build([u8("b"), u8("a")]), "order", "names out of order"
    utf16 = [u8("\U00010000"), u8("\uffff")]
    yield "names_utf16", build(utf16), "order", "sorted by UTF-16 units, not by bytes"
    yield "keys_equal", build((), [("k", "1"), ("k", "2")]), "order", "duplicate key"
    yield "keys_descend", build((), [("k", "1"), ("j", "2")]), "order", "keys out of order"


def bad_tensors():
    yield "dtype_0", build([u8("a", code=0)]), "dtype", "code 0"
    yield "dtype_15", build([u8("a", code=15)]), "dtype", "first unused code"
    yield "dtype_255", build([u8("a", code=255)]), "dtype", "code 255"
    yield "rank_9", build([T("a", "u8", (1,) * 9, b"\1")]), "rank", "rank 9, otherwise right"
    yield "rank_255", build([u8("a", rank=255)]), "rank", "rank 255"
    yield "rank_8_cut", build([u8("a", rank=8)]), "index", "dimensions past the index"
    for what, dtype, shape in (
        ("2_48", "u8", (2**48 + 1,)),
        ("f32", "f32", (2**47,)),
        ("max", "u8", (2**64 - 1,)),
        ("product", "u8", (2**32, 2**32)),
        ("bytes_wrap", "f64", (2**61,)),
        ("rank8", "u8", (2**8,) * 8),
        ("zero_hides", "u8", (2**49, 0)),
        ("zero_first", "f64", (0, 2**60, 2**60)),
    ):
        yield (
            f"shape_{what}",
            build([T("a", dtype, shape, b"")]),
            "shape",
            f"shape {shape} of {dtype}",
        )
    wraps = (5, 7378697629483820647)
    yield (
        "shape_wraps_to_3",
        build([T("a", "u8", wraps, b"abc")]),
        "shape",
        "product is 3 modulo 2^64",
    )
    two = lambda **edit: build([u8("a"), u8("b", **edit)])  # noqa: E731
    yield "offset_unaligned", two(offset=193), "offset", "one byte late"
    yield (
        "offset_element",
        build([T("a", "f64", (1,), bytes(8), offset=136)]),
        "offset",
        "8-byte aligned",
    )
    yield "offset_overlap", two(offset=128), "offset", "on the first tensor's payload"
    yield "offset_header", two(offset=0), "offset", "on the header"
    yield "offset_index", two(offset=64), "offset", "on the index"
    yield (
        "offset_gap",
        build([u8("a"), u8("b", offset=256)], tail=bytes(64)),
        "offset",
        "64 bytes late",
    )
    yield "offset_past", two(offset=2**20), "offset", "past the end of the file"
    yield "offset_wraps", two(offset=2**64 - 64), "offset", "offset + bytes overflows"
    swapped = [u8("a", offset=192), u8("b", offset=128)]
    yield "offset_swapped", build(swapped), "offset", "payloads in another order than names"
    yield (
        "bounds_by_one",
        build([T("a", "u8", (65,), bytes(64), crc=0)]),
        "bounds",
        "one byte too many",
    )
    yield (
        "bounds_far",
        build([T("a", "f32", (2**40,), bytes(64))]),
        "bounds",
        "4 TiB in a small file",
    )
    yield "bounds_missing", build([T("a", "u8", (3,), b"")]), "bounds", "payload missing"
    for what, tensor in (("full", u8("a")), ("empty", T("a", "u8", (0,), b""))):
        cut = build([tensor], file_bytes=89)[:89]
        yield f"bounds_cut_{what}", cut, "bounds", f"{what} payload would start past the end"
    yield "padding_all", build([u8("a")], fill=b"\1"), "padding", "padding of ones"
    image = build([u8("a"), u8("b")])
    for what, at in (("index", 127), ("first", 131), ("between", 191), ("last", 255)):
        bad = bytearray(image)
        bad[at] = 0x80
        yield f"padding_{what}", bytes(bad), "padding", f"byte {at} is not zero"
    yield "trailing_64", build([u8("a")], tail=bytes(64)), "trailing", "a block too many, counted"
    yield "trailing_1", build([u8("a")], tail=b"\0"), "trailing", "size not a multiple of 64"


def bad_payloads():
    image = build([u8("a"), T("b", "f32", (2,), struct.pack("<2f", 1, 2))])
    for what, at in (("first", 128), ("last_of_first", 130), ("second", 192), ("last", 199)):
        bad = bytearray(image)
        bad[at] ^= 0x40
        yield f"payload_{what}", bytes(bad), "payload-crc", f"a bit of byte {at} flipped"
    yield "crc_zero", build([u8("a", crc=0)]), "payload-crc", "zero instead of the CRC"
    yield "crc_plain", build([u8("a", crc=0x55BC801D)]), "payload-crc", "CRC-32 instead of CRC32C"
    yield (
        "crc_of_empty",
        build([T("a", "u8", (0,), b"", crc=1)]),
        "payload-crc",
        "CRC of nothing is 0",
    )
    yield "bool_2", build([T("a", "bool", (3,), b"\0\1\2")]), "bool", "a bool of 2"
    yield "bool_255", build([T("a", "bool", (1,), b"\xff")]), "bool", "a bool of 255"


def main(directory: pathlib.Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    lines = ["file\tverdict\trule\twhy"]

    def put(name: str, data: bytes, verdict: str, rule: str, why: str) -> None:
        (directory / name).write_bytes(data)
        lines.append(f"{name}\t{verdict}\t{rule}\t{why}")

    for name, data, why in good_files():
        put(f"good_{name}.kdtr", data, "accept", "-", why)
    for files, verdict in ((bad_headers, "open"), (bad_text, "open"), (bad_tensors, "open"),
                           (bad_payloads, "verify")):  # fmt: skip
        for name, data, rule, why in files():
            put(f"bad_{name}.kdtr", data, verdict, rule, why)
    (directory / "manifest.tsv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests/golden/kdtr_corpus")
