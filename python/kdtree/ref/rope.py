"""Rotary position embedding (arXiv 2104.09864) and its YaRN extension (arXiv 2309.00071).

Formulas as in Hugging Face transformers: modeling_rope_utils (_compute_yarn_parameters) and
modeling_deepseek_v3. Frequencies are fp32; angle = fp32 position x fp32 frequency, rounded to fp32.
"""

import math

import numpy as np


def inv_freq(dim, theta, scaling=None):
    """[dim / 2] fp32. scaling: the config's rope_scaling with factor, beta_fast, beta_slow and
    original_max_position_embeddings, or None for plain RoPE."""
    i = np.arange(dim // 2)
    extrapolated = np.float64(theta) ** (-2.0 * i / dim)
    if scaling is None:
        return extrapolated.astype(np.float32)

    def correction(rotations):
        """Dimension that turns `rotations` times over the original context."""
        context = scaling["original_max_position_embeddings"]
        return dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(correction(scaling.get("beta_fast", 32))), 0)
    high = min(math.ceil(correction(scaling.get("beta_slow", 1))), dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((i - low) / (high - low), 0, 1)
    interpolated = extrapolated / scaling["factor"]
    return (interpolated * ramp + extrapolated * (1 - ramp)).astype(np.float32)


def yarn_mscale(factor, mscale):
    """0.1 mscale ln(factor) + 1, and 1 for factor <= 1."""
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def softmax_scale(qk_dim, scaling=None):
    """DeepSeek-V3: qk_dim^-0.5 times yarn_mscale(factor, mscale_all_dim)^2."""
    all_dim = (scaling or {}).get("mscale_all_dim", 0)
    mscale = yarn_mscale(scaling["factor"], all_dim) if all_dim else 1.0
    return qk_dim**-0.5 * mscale**2


def amplitude(scaling=None):
    """Factor on cos and sin: an explicit attention_factor, else the ratio of the two mscales if
    both are given, else yarn_mscale(factor, 1)."""
    if scaling is None:
        return 1.0
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return yarn_mscale(scaling["factor"], scaling["mscale"]) / yarn_mscale(
            scaling["factor"], scaling["mscale_all_dim"]
        )
    return yarn_mscale(scaling["factor"], 1.0)


def rope(x, positions, frequencies, amplitude=1.0, interleaved=True):
    """x [M, H, dim], positions [M] -> rotated x. interleaved: pairs (2i, 2i + 1), as in DeepSeek
    checkpoints; otherwise (i, i + dim / 2), as in Qwen."""
    angle = np.asarray(positions).astype(np.float32)[:, None] * frequencies.astype(np.float32)
    angle = angle.astype(np.float64)[:, None, :]
    cos, sin = np.cos(angle) * amplitude, np.sin(angle) * amplitude
    half = x.shape[-1] // 2
    first, second = (
        (np.s_[..., 0::2], np.s_[..., 1::2])
        if interleaved
        else (np.s_[..., :half], np.s_[..., half:])
    )
    out = np.empty_like(x)
    out[first] = x[first] * cos - x[second] * sin
    out[second] = x[second] * cos + x[first] * sin
    return out
