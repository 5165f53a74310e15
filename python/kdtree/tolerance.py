"""How far a floating-point result may be from the reference: one formula for every test.

The C++ twin is tests/ops/tolerance.h; the formula is also in tests/golden/README.md. u is the unit
roundoff of a format (half the distance from 1 to the next number). Values rounded to dtype t are
off by up to u(t), about 0.4 u(t) in norm, and are sums of `length` terms accumulated in fp32 (f64
for f64), whose rounding errors add up like a random walk: 4 u(acc) sqrt(length). When the terms
cancel, that part grows by the ratio of the norm of the terms to the norm of the result. Caps keep
every bound at or below what the engine promises, whatever the length.
"""

import math

import numpy as np

UNIT_ROUNDOFF = {
    "f64": 2.0**-53,
    "f32": 2.0**-24,
    "f16": 2.0**-11,
    "bf16": 2.0**-8,
    "f8e4m3": 2.0**-4,
}
CAP = {"f64": 1e-12, "f32": 1e-5, "f16": 5e-3, "bf16": 5e-3, "f8e4m3": 4e-2}
LSE_CAP = {"f64": 1e-11, "f32": 1e-4, "f16": 2e-3, "bf16": 2e-3, "f8e4m3": 4e-2}


def tolerance(dtype, length, norm_terms=1.0, norm_ref=1.0):
    """Largest allowed ||out - ref|| / ||ref||.

    dtype: the narrowest of the types that the values pass through; length: terms of the longest
    sum; norm_terms / norm_ref: norm of the summed terms over that of the result, 1 without
    cancellation.
    """
    accumulator = UNIT_ROUNDOFF["f64" if dtype == "f64" else "f32"]
    cancellation = max(1.0, norm_terms / norm_ref) if norm_ref > 0 else 1.0
    bound = UNIT_ROUNDOFF[dtype] + 4 * accumulator * math.sqrt(max(length, 1)) * cancellation
    return min(bound, CAP[dtype])


def lse_tolerance(dtype):
    """Largest allowed |lse - ref|."""
    return LSE_CAP[dtype]


def relative_error(out, ref):
    """||out - ref|| / ||ref|| in float64 (absolute if ref is 0); inf if shapes differ or if NaN or
    infinities are not in the same places."""
    out, ref = np.asarray(out, np.float64), np.asarray(ref, np.float64)
    special = ~np.isfinite(ref)
    if out.shape != ref.shape or np.isnan(out).any() or np.isnan(ref).any():
        return math.inf
    if (out[special] != ref[special]).any() or not np.isfinite(out[~special]).all():
        return math.inf
    difference = np.linalg.norm(out[~special] - ref[~special])
    norm = np.linalg.norm(ref[~special])
    return float(difference / norm if norm > 0 else difference)


def ulp_distance(a, b):
    """Elementwise distance of two fp32 arrays in units in the last place, 0 if equal."""
    ordered = []
    for x in (a, b):
        bits = np.ascontiguousarray(x, np.float32).view(np.int32).astype(np.int64)
        ordered.append(np.where(bits < 0, -(bits & 0x7FFFFFFF), bits))
    return np.abs(ordered[0] - ordered[1])
