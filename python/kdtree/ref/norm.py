"""RMSNorm (arXiv 1910.07467) and the SwiGLU activation (arXiv 2002.05202)."""

import numpy as np


def rms_norm(x, weight, eps):
    """x [..., D], weight [D] -> x / sqrt(mean(x^2) + eps) * weight, in the type of x."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu_mul(gate, up):
    """gate, up [...] -> silu(gate) * up with silu(x) = x / (1 + exp(-x))."""
    with np.errstate(over="ignore"):
        return gate / (1 + np.exp(-gate)) * up
