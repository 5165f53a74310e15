"""Cases of lse_merge: two halves of an attention, and empty sides."""

import numpy as np

from kdtree.golden import seeded
from kdtree.golden.case import Case
from kdtree.ref.lse_merge import lse_merge


def merge_case(name, seed, parts, note):
    """parts: out_a [R, D], lse_a [R], out_b, lse_b."""
    parts = [np.asarray(part, np.float32) for part in parts]
    out, lse = lse_merge(*parts)
    outputs = {"out": out.astype(np.float32), "lse": lse.astype(np.float32)}
    return Case(
        "lse_merge",
        name,
        seed,
        dict(zip(("out_a", "lse_a", "out_b", "lse_b"), parts)),
        outputs,
        note,
    )


def cases():
    shape = (24, 64)
    a, b = seeded.seeded_f32(5000, shape, 1.0), seeded.seeded_f32(5001, shape, 1.0)
    lse_a, lse_b = seeded.seeded_f32(5002, (24,), 3.0), seeded.seeded_f32(5003, (24,), 3.0)
    yield merge_case("random", 5000, (a, lse_a, b, lse_b), "lse of standard deviation 3")
    no_a, no_b = np.arange(24) < 8, (np.arange(24) >= 4) & (np.arange(24) < 12)
    empty_a, empty_b = a * ~no_a[:, None], b * ~no_b[:, None]
    lse_a, lse_b = np.where(no_a, -np.inf, lse_a), np.where(no_b, -np.inf, lse_b)
    yield merge_case(
        "empty_sides",
        5010,
        (empty_a, lse_a, empty_b, lse_b),
        "rows 0 .. 3 have only b, 8 .. 11 only a, 4 .. 7 neither",
    )
    far = seeded.seeded_f32(5022, (24,), 400.0)
    yield merge_case("far_apart", 5020, (a, far, b, -far), "exp of either lse overflows")
