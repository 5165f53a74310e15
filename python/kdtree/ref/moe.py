"""Mixture of experts of DeepSeek-V3 (arXiv 2412.19437, section 2.1.2; modeling_deepseek_v3).

Experts of groups that lose are set to -inf as in DeepSeek's own inference code (transformers sets
them to 0, which differs when sigmoid + bias is negative).
"""

import numpy as np

from .norm import silu_mul


def moe_route(
    logits, bias, n_selected, n_group=1, topk_group=1, scaling_factor=1.0, normalize=True
):
    """logits [M, E], bias [E] or None -> (ids [M, n_selected] int32, weights [M, n_selected]).

    Selection by sigmoid + bias, descending, ties to the lower id; weights are the sigmoids alone.
    """
    scores = 1 / (1 + np.exp(-np.asarray(logits, np.float64)))
    choice = scores if bias is None else scores + np.asarray(bias, np.float64)
    if n_group > 1:
        grouped = choice.reshape(len(choice), n_group, -1)
        group_score = np.sort(grouped, axis=-1)[..., -2:].sum(axis=-1)
        order = np.argsort(-group_score, axis=-1, kind="stable")
        allowed = np.zeros(group_score.shape, bool)
        np.put_along_axis(allowed, order[:, :topk_group], True, axis=-1)
        choice = np.where(allowed[..., None], grouped, -np.inf).reshape(choice.shape)
    ids = np.argsort(-choice, axis=-1, kind="stable")[:, :n_selected]
    weights = np.take_along_axis(scores, ids, axis=-1)
    if normalize:
        weights = weights / (weights.sum(axis=-1, keepdims=True) + 1e-20)
    return ids.astype(np.int32), weights * scaling_factor


def mlp(x, gate, up, down):
    """x [M, hidden]; gate, up [intermediate, hidden]; down [hidden, intermediate] -> [M, hidden]"""
    return silu_mul(x @ gate.T, x @ up.T) @ down.T


def moe_experts(x, ids, weights, gate, up, down):
    """x [M, hidden]; ids, weights [M, S]; gate, up, down: E matrices as in mlp -> [M, hidden]:
    the sum over slots, in slot order, of weight * mlp of that slot's expert."""
    out = np.zeros_like(x)
    for slot in range(ids.shape[1]):
        for expert in np.unique(ids[:, slot]):
            rows = np.flatnonzero(ids[:, slot] == expert)
            out[rows] += weights[rows, slot, None] * mlp(
                x[rows], gate[expert], up[expert], down[expert]
            )
    return out
