"""Draft logits -> top-K log-probabilities per depth, the input of the tree builder.

Source: the DDTree reference (arXiv 2604.12989): fp32 logits, fp32 log-sum-exp, fp32 difference.
Order is fixed here because equal logits are common in bf16: logit descending, token id ascending.
"""

import numpy as np


def log_sum_exp(logits):
    """logits [..., V] fp32 -> [...] fp32, computed in float64 and rounded once.

    -inf where every entry is -inf, NaN where any is NaN or +inf.
    """
    x = np.asarray(logits, np.float64)
    peak = x.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = np.where(np.isneginf(peak), -np.inf, x - peak)
        return (peak[..., 0] + np.log(np.exp(shifted).sum(axis=-1))).astype(np.float32)


def draft_topk(logits, k, log_z=None):
    """logits [L, V] fp32, one request -> (logp [L, k] fp32, ids [L, k] int32, log_z [L] fp32).

    A given log_z [L] (another backend's, within 2 ulp of ours) replaces the computed one.
    Entries past the vocabulary and entries whose logit is -inf are (-inf, -1) and come last.
    Raises ValueError if any logit is NaN or +inf: that is an error of this request alone.
    """
    logits = np.asarray(logits, np.float32)
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise ValueError("draft logits contain NaN or +inf")
    depth, vocab = logits.shape
    log_z = log_sum_exp(logits) if log_z is None else log_z
    order = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    top = np.take_along_axis(logits, order, axis=-1)
    alive = np.isfinite(top)
    logp = np.full((depth, k), -np.inf, np.float32)
    ids = np.full((depth, k), -1, np.int32)
    with np.errstate(invalid="ignore"):
        logp[:, : order.shape[1]] = np.where(alive, top - log_z[:, None], np.float32(-np.inf))
    ids[:, : order.shape[1]] = np.where(alive, order, -1)
    return logp, ids, log_z
