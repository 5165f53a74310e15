"""Inputs that are the same bytes on any machine.

Everything here is integer random numbers (Philox4x32-10) and IEEE additions, multiplications and
divisions, each rounded on its own; no function of a math library is called. Large bf16 inputs need
not be stored: a `Seeded` tensor is written as a line of metadata, and tests/golden/README.md gives
the formula for other readers.
"""

import math
from dataclasses import dataclass

import numpy as np

from kdtree import kdtr
from kdtree.ref.philox import stream_u32


def seeded_f32(seed, shape, scale):
    """Roughly normal fp32 of standard deviation `scale`: the sum of the four bytes of a random
    word, less its mean 510, times fp32(scale) / 148 (its standard deviation is 147.8)."""
    words = stream_u32(seed, math.prod(shape))
    total = words.view(np.uint8).reshape(-1, 4).sum(axis=1, dtype=np.int32) - 510
    return (total.astype(np.float32) * (np.float32(scale) / np.float32(148))).reshape(shape)


def seeded_bf16(seed, shape, scale):
    """seeded_f32 rounded to bf16, as a KDTR tensor."""
    return kdtr.bf16(seeded_f32(seed, shape, scale))


def seeded_below(seed, shape, bound):
    """Integers in [0, bound) as int32: (word * bound) >> 32."""
    words = stream_u32(seed, math.prod(shape)).astype(np.uint64)
    return ((words * np.uint64(bound)) >> np.uint64(32)).astype(np.int32).reshape(shape)


def seeded_permutation(seed, n):
    """A permutation of 0 .. n - 1 as int32: the order of n random words, ties by index."""
    return np.argsort(stream_u32(seed, n), kind="stable").astype(np.int32)


@dataclass(frozen=True)
class Seeded:
    """A bf16 input that is not stored: its values are seeded_bf16(seed, shape, scale)."""

    seed: int
    shape: tuple
    scale: float

    def make(self):
        return seeded_bf16(self.seed, self.shape, self.scale)

    def describe(self):
        return f"bf16 seed={self.seed} scale={self.scale} shape={','.join(map(str, self.shape))}"


_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")


def portable_exp(x):
    """exp of a float64 array in [-700, 700] to about 1 ulp: 2^n times a Taylor series."""
    x = np.asarray(x, np.float64)
    n = np.rint(x * (1 / (_LN2_HIGH + _LN2_LOW)))
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    y = np.ones_like(r)
    for i in range(16, 0, -1):
        y = 1 + y * r / i
    return np.ldexp(y, n.astype(np.int32))


def portable_log(x):
    """log of a positive float: the series of artanh((m - 1) / (m + 1)) after x = m * 2^e."""
    m, e = math.frexp(x)
    if m < 0.7:
        m, e = 2 * m, e - 1
    t = (m - 1) / (m + 1)
    series = 0.0
    for i in range(39, 0, -2):
        series = series * (t * t) + 1 / i
    return e * _LN2_HIGH + (e * _LN2_LOW + 2 * t * series)


def portable_log_z(logits):
    """logits [L, V] fp32, no NaN -> log-sum-exp [L] fp32, the same bits everywhere."""
    log_z = np.full(len(logits), -np.inf, np.float32)
    for row, x in enumerate(np.asarray(logits, np.float64)):
        peak = x.max()
        if peak > -np.inf:
            total = math.fsum(portable_exp(x[x > peak - 600] - peak))
            log_z[row] = peak + portable_log(total)
    return log_z
