"""Joins two attention results over disjoint keys into the result over their union.

Source: the online softmax (Milakov and Gimelshein, arXiv 1805.02867) and FlashAttention's split
reduction (arXiv 2205.14135): out = sum of out_i * exp(lse_i - lse), lse = logaddexp(lse_a, lse_b).
"""

import numpy as np


def lse_merge(out_a, lse_a, out_b, lse_b):
    """out_* [..., D], lse_* [...] natural log -> (out [..., D], lse [...]) in float64.

    A part with lse -inf contributes nothing, whatever its output holds; two such give 0 and -inf.
    """
    lse_a, lse_b = np.asarray(lse_a, np.float64), np.asarray(lse_b, np.float64)
    lse = np.logaddexp(lse_a, lse_b)
    base = np.where(np.isneginf(lse), 0.0, lse)
    out = np.zeros(np.broadcast_shapes(np.shape(out_a), np.shape(out_b)))
    for part, part_lse in ((out_a, lse_a), (out_b, lse_b)):
        weight = np.exp(part_lse - base)[..., None]
        out += np.where(weight > 0, np.asarray(part, np.float64) * weight, 0.0)
    return out, lse
