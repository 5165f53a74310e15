"""Quantized weights of checkpoints.

INT4: compressed-tensors "pack-quantized", symmetric groups (Kimi K2.5 / K2.6 experts).
FP8: e4m3 blocks of 128 x 128 with fp32 scales (DeepSeek-V3, README_WEIGHTS.md).
"""

import numpy as np

from .numeric import f32_from_f8e4m3


def int4_pack(q):
    """q [out, in] integers in -8 .. 7, in divisible by 8 -> int32 [out, in / 8]; column i sits in
    bits 4 (i % 8) .. of word i / 8 as q + 8."""
    nibbles = (np.asarray(q, np.int64) + 8).astype(np.uint32).reshape(len(q), -1, 8)
    shifts = np.arange(8, dtype=np.uint32) * np.uint32(4)
    return np.bitwise_or.reduce(nibbles << shifts, axis=-1).view(np.int32)


def int4_unpack(packed):
    """int32 [out, in / 8] -> int8 [out, in]."""
    shifts = np.arange(8, dtype=np.uint32) * np.uint32(4)
    nibbles = (np.ascontiguousarray(packed).view(np.uint32)[..., None] >> shifts) & np.uint32(15)
    return (nibbles.astype(np.int8) - 8).reshape(len(packed), -1)


def int4_dequantize(packed, scale, group=32):
    """packed [out, in / 8], scale [out, in / group] -> fp32 [out, in] = q * scale."""
    return int4_unpack(packed).astype(np.float32) * np.repeat(scale, group, axis=1)


def int4_quantize(weight, group=32):
    """fp32 [out, in] -> (packed, scale [out, in / group] fp32): scale = largest magnitude / 7."""
    grouped = weight.reshape(len(weight), -1, group)
    scale = np.abs(grouped).max(axis=-1) / np.float32(7)
    q = np.rint(grouped / np.where(scale == 0, 1, scale)[..., None]).clip(-8, 7)
    return int4_pack(q.reshape(weight.shape)), scale.astype(np.float32)


def fp8_dequantize(codes, scale_inv, block=128):
    """codes [out, in] e4m3 bits, scale_inv [ceil(out / block), ceil(in / block)] fp32 -> fp32
    [out, in] = value * scale_inv of its block (multiplied, despite the name)."""
    rows, columns = codes.shape
    scale = np.repeat(np.repeat(scale_inv, block, axis=0)[:rows], block, axis=1)[:, :columns]
    return f32_from_f8e4m3(codes) * scale
