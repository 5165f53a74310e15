"""Cases of linear: dense, INT4 groups, FP8 blocks, several groups.

The weight format follows from the dtype of `data`: i32 = INT4 groups, f8e4m3 = FP8 blocks."""

import numpy as np

from kdtree import kdtr
from kdtree.golden import seeded
from kdtree.golden.case import Case, i32, values
from kdtree.golden.seeded import Seeded
from kdtree.ref import quantized


def linear_case(name, seed, shape, data, weight, note, **more):
    """shape = (M, G, in); data: the stored weights; weight [G, out, in] fp32: their values."""
    x = seeded.seeded_f32(seed + 9, shape, 1.0)
    y = np.einsum("mgi,goi->mgo", x.astype(np.float64), weight.astype(np.float64))
    return Case(
        "linear", name, seed, {"x": x, "data": data, **more}, {"y": y.astype(np.float32)}, note
    )


def cases():
    dense = Seeded(7000, (1, 70, 96), 0.05)
    yield linear_case("bf16", 7000, (5, 1, 96), dense, values(dense), "")
    absorbed = Seeded(7010, (4, 64, 32), 0.05)
    yield linear_case(
        "bf16_groups", 7010, (3, 4, 32), absorbed, values(absorbed), "4 groups, as heads"
    )
    f16 = seeded.seeded_f32(7020, (1, 33, 64), 0.05).astype(np.float16)
    yield linear_case("f16", 7020, (2, 1, 64), f16, f16.astype(np.float32), "")
    f32 = seeded.seeded_f32(7030, (1, 17, 40), 0.05)
    yield linear_case("f32", 7030, (70, 1, 40), f32, f32, "more rows than one tile")
    yield from quantized_cases()


def quantized_cases():
    q = seeded.seeded_below(7040, (2, 48, 128), 16) - 8
    packed = np.stack([quantized.int4_pack(group) for group in q])
    scale = kdtr.bf16(np.abs(seeded.seeded_f32(7041, (2, 48, 4), 0.01)))
    weight = np.stack([quantized.int4_dequantize(p, s) for p, s in zip(packed, kdtr.to_f32(scale))])
    yield linear_case(
        "int4",
        7040,
        (4, 2, 128),
        packed,
        weight,
        "groups of 32 along the input",
        scale=scale,
        group_size=i32(32),
    )
    codes = kdtr.f8e4m3(seeded.seeded_f32(7050, (1, 140, 200), 60.0))
    scale = np.abs(seeded.seeded_f32(7051, (1, 2, 2), 0.001))
    weight = quantized.fp8_dequantize(codes.codes[0], scale[0])[None]
    yield linear_case(
        "fp8",
        7050,
        (3, 1, 200),
        codes,
        weight,
        "partial blocks of 128 x 128",
        scale=scale,
        block_size=i32(128),
    )
