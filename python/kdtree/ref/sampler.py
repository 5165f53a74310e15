"""The target token of a row of logits: argmax, or one draw that depends only on (seed, position).

The draw is the Gumbel-max trick (Gumbel 1954; Maddison et al., arXiv 1411.0030) on uniforms of
Philox4x32-10 keyed by the request seed and counted by absolute position and token id. So a token
is the same with and without speculation, for any tree and any batch.
"""

from dataclasses import dataclass

import numpy as np

from .philox import philox4x32, split64


@dataclass
class Sampling:
    """How a request draws its tokens. The floats are fp32 values, used in float64."""

    temperature: float = 0.0  # 0 = greedy
    top_k: int = 0  # 0 = off
    top_p: float = 1.0  # (0, 1], 1 = off
    min_p: float = 0.0  # [0, 1), 0 = off
    seed: int = 0  # 64 bits


@dataclass
class Draw:
    token: int
    margin: float  # best minus second of the drawn quantity; +inf if one token is kept
    filter_margin: float  # distance of the nearest token to a top-p or min-p threshold; +inf if off


def uniforms(seed, position, token_ids):
    """u in (0, 1) of every token id at an absolute position, float64. token_ids [n] -> [n]

    counter = (position, id / 4, 0, 0), lane = id % 4, u = (x + 0.5) / 2^32.
    """
    token_ids = np.asarray(token_ids, np.uint64)
    lanes = philox4x32((position, token_ids >> np.uint64(2), 0, 0), split64(seed))
    x = np.choose((token_ids & np.uint64(3)).astype(np.int64), lanes)
    return (x.astype(np.float64) + 0.5) * 2.0**-32


def argmax_token(logits):
    """logits [V] -> Draw of the largest logit, ties to the lower id."""
    logits = np.asarray(logits, np.float64)
    best = int(logits.argmax())
    return Draw(best, logits[best] - np.delete(logits, best).max(initial=-np.inf), np.inf)


def kept_tokens(logits, sampling):
    """logits [V] -> (ids [n] of the kept tokens by probability descending then id, filter margin).

    The filters apply in the order top-k, top-p, min-p to p = softmax(logits / T), each to the
    probabilities of the tokens kept so far, renormalized: top-p keeps the shortest prefix whose sum
    reaches top_p, min-p keeps p >= min_p * largest p. The first token always stays.
    """
    logits = np.asarray(logits, np.float64)
    order = np.argsort(-logits, kind="stable")
    order = order[np.isfinite(logits[order])]
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    x = logits[order] / np.float64(np.float32(sampling.temperature))
    p = np.exp(x - x[0])
    p /= p.sum()
    margin, top_p, min_p = np.inf, np.float32(sampling.top_p), np.float32(sampling.min_p)
    if top_p < 1:
        before = np.concatenate([[0.0], np.cumsum(p)[:-1]])
        margin = np.abs(before[1:] - top_p).min(initial=np.inf)
        n_kept = max(1, np.count_nonzero(before < top_p))
        order, p = order[:n_kept], p[:n_kept]
    if min_p > 0:
        margin = min(margin, np.abs(p[1:] / p[0] - min_p).min(initial=np.inf))
        order = order[p >= min_p * p[0]]
    return order, margin


def sample_token(logits, position, sampling):
    """logits [V] fp32 -> Draw of the token at `position` (absolute, of the token being drawn).

    Raises ValueError on NaN, +inf, or no finite logit.
    """
    logits = np.asarray(logits, np.float32)
    if np.isnan(logits).any() or np.isposinf(logits).any() or np.isneginf(logits).all():
        raise ValueError("target logits contain NaN or +inf, or no finite entry")
    if sampling.temperature == 0:
        return argmax_token(logits)
    ids, filter_margin = kept_tokens(logits, sampling)
    ids = np.sort(ids)  # the argmax below must give ties to the lower id
    gumbel = -np.log(-np.log(uniforms(sampling.seed, position, ids)))
    drawn = logits[ids] / np.float64(np.float32(sampling.temperature)) + gumbel
    best = int(drawn.argmax())
    margin = drawn[best] - np.delete(drawn, best).max(initial=-np.inf)
    return Draw(int(ids[best]), margin, filter_margin)
