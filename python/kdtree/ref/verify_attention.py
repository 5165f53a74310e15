"""Absorbed multi-head latent attention of draft-tree rows over a paged prefix plus the tree tail.

Source: MLA of DeepSeek-V2 (arXiv 2405.04434, section 2.1) with W_UK folded into the query, and the
tree mask of DDTree. Scores, softmax and sums are float64; the log-sum-exp is natural.
"""

import numpy as np

from . import ancestors

PAGE_TOKENS = 64


def gather_pages(pages, block_table, length):
    """pages [n_pages, 64, D], block_table [>= ceil(length / 64)] int32 -> [length, D]: the rows of
    positions 0 .. length - 1."""
    position = np.arange(length)
    return pages[np.asarray(block_table)[position // PAGE_TOKENS], position % PAGE_TOKENS]


def masked_attention(query, keys, visible, scale, n_latent):
    """query [R, H, D], keys [S, D], visible [R, S] bool -> (out [R, H, n_latent], lse [R, H]).

    All in float64. The value of a key is its first n_latent elements.
    A row that sees nothing gives 0 and -inf.
    """
    rows, heads, width = query.shape
    keys = np.asarray(keys, np.float64)
    flat = np.asarray(query, np.float64).reshape(rows * heads, width)
    scores = scale * (flat @ keys.T).reshape(rows, heads, len(keys))
    scores = np.where(visible[:, None, :], scores, -np.inf)
    peak = scores.max(axis=-1, initial=-np.inf)
    shift = np.where(np.isneginf(peak), 0.0, peak)
    weights = np.exp(scores - shift[..., None])
    total = weights.sum(axis=-1)
    with np.errstate(divide="ignore"):
        lse = shift + np.log(total)
    out = weights.reshape(rows * heads, len(keys)) @ keys[:, :n_latent]
    out = out.reshape(rows, heads, n_latent) / np.where(total == 0, 1.0, total)[..., None]
    return out, lse


def verify_attention(query, pages, block_table, prefix, tail, scale, words=None, n_latent=512):
    """One request. query [N, H, 576] = q_abs | q_pe; pages [n_pages, 64, 576] = c_kv | k_pe;
    block_table int32; prefix = number of cached tokens, all visible; tail [N, 576], row = node id;
    words [N, W] uint64 ancestor bits, or None for a causal chain (row i sees tail rows 0 .. i).

    Returns (out [N, H, n_latent], lse [N, H]) in float64.
    """
    n = len(query)
    mask = np.tri(n, dtype=bool) if words is None else ancestors.unpack_words(words, n)
    keys = np.concatenate([gather_pages(pages, block_table, prefix), tail])
    visible = np.concatenate([np.ones((n, prefix), bool), mask], axis=1)
    return masked_attention(query, keys, visible, scale, n_latent)
