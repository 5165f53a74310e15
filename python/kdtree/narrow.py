"""bf16 and f8e4m3, the narrow floats that numpy lacks: a tagged array of codes, and conversions."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np


class Tensor(NamedTuple):
    """A tensor of a dtype numpy lacks: its codes as uint16 (bf16) or uint8 (f8e4m3)."""

    dtype: str
    codes: np.ndarray


def _require_f32(x: np.ndarray) -> np.ndarray:
    # Rounding f64 through f32 would round twice; the caller decides.
    if not isinstance(x, (np.ndarray, np.generic)) or x.dtype != np.float32:
        raise TypeError("float32 array expected")
    return np.asarray(x)


def bf16(x: np.ndarray) -> Tensor:
    """float32 -> bf16, to nearest, ties to even; NaN stays NaN."""
    bits = _require_f32(x).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
    quiet = (bits >> 16) | np.uint32(0x40)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return Tensor("bf16", np.where(is_nan, quiet, rounded).astype(np.uint16))


def f8e4m3(x: np.ndarray) -> Tensor:
    """float32 -> OCP FP8 E4M3, to nearest, ties to even, saturating at 448; NaN stays NaN."""
    x = _require_f32(x)
    values = _f8e4m3_values()[:0x7F]
    middles = (values[:-1] + values[1:]) / 2  # exact
    size = np.abs(x)
    code = np.searchsorted(middles, size, side="left")  # a tie goes to the lower neighbour
    tied = size == np.append(middles, np.float32(np.inf))[code]
    code += tied & (code % 2 == 1) & (code < 0x7E)
    code = np.where(np.isnan(x), 0x7F, code) | np.where(np.signbit(x), 0x80, 0)
    return Tensor("f8e4m3", code.astype(np.uint8))


def to_f32(x: Tensor | np.ndarray) -> np.ndarray:
    """float32 values of a bf16 or f8e4m3 Tensor (exact), or of an ndarray (as astype rounds)."""
    if not isinstance(x, Tensor):
        return x.astype(np.float32)
    if x.dtype == "bf16":
        return (x.codes.astype(np.uint32) << 16).view(np.float32)
    return _f8e4m3_values()[x.codes]


@functools.cache
def _f8e4m3_values() -> np.ndarray:
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(8.0 + mantissa, exponent - 10))
    value[(code & 0x7F) == 0x7F] = np.nan
    return np.copysign(value, np.where(code < 128, 1.0, -1.0)).astype(np.float32)
