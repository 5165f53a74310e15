"""kv_b_proj, the queries and outputs before and after absorption."""

import numpy as np

from kdtree.golden import seeded
from kdtree.golden.case import Case, i32, values
from kdtree.golden.seeded import Seeded
from kdtree.ref.mla_absorb import absorb_query, expand_value, mla_absorb


def cases():
    """q_nope [M, H, 128] -> q_abs [M, H, 512]; latent_out [M, H, 512] -> value [M, H, 128]."""
    heads, kv_b = 4, Seeded(7100, (4 * 256, 512), 0.04)
    w_uk, w_uv = mla_absorb(values(kv_b).astype(np.float64), heads, 128, 128)
    q_nope, out = (
        seeded.seeded_f32(7101, (5, 4, 128), 1.0),
        seeded.seeded_f32(7102, (5, 4, 512), 1.0),
    )
    outputs = {
        "q_abs": absorb_query(q_nope.astype(np.float64), w_uk).astype(np.float32),
        "value": expand_value(out.astype(np.float64), w_uv).astype(np.float32),
    }
    yield Case(
        "mla_absorb",
        "heads4",
        7100,
        {"kv_b_proj": kv_b, "n_heads": i32(heads), "q_nope": q_nope, "latent_out": out},
        outputs,
        "per head 128 rows of k_nope, then 128 rows of v",
    )
