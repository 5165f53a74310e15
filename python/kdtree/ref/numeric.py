"""The narrow float formats of checkpoints, from bit patterns: bf16 and OCP FP8 E4M3."""

import numpy as np


def f32_from_bf16(bits):
    """bf16 bits (uint16) -> fp32, exact."""
    return (np.ascontiguousarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(
        np.float32
    )


def f32_from_f8e4m3(bits):
    """FP8 E4M3 "fn" bits (uint8) -> fp32: bias 7, no infinity, 0x7f and 0xff are NaN."""
    bits = np.asarray(bits, np.uint8).astype(np.int32)
    exponent, mantissa = (bits >> 3) & 15, bits & 7
    normal = np.ldexp((8 + mantissa).astype(np.float32), exponent - 10)
    subnormal = np.ldexp(mantissa.astype(np.float32), -9)
    magnitude = np.where(exponent == 0, subnormal, normal)
    magnitude = np.where((bits & 0x7F) == 0x7F, np.float32(np.nan), magnitude)
    return np.where(bits & 0x80, -magnitude, magnitude).astype(np.float32)
