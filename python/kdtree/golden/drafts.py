"""Draft logits of several characters, and the trees built from them."""

import numpy as np

from kdtree import kdtr
from kdtree.golden import seeded
from kdtree.ref.draft_topk import draft_topk
from kdtree.ref.tree_build import tree_build

KINDS = ("realistic", "peaked", "flat", "ties", "sparse")


def draft_logits(kind, seed, depth, vocab):
    """[depth, vocab] fp32 with bf16 values, so that exact ties are common, as in real drafts."""
    scale = {"flat": 0.25, "peaked": 1.0}.get(kind, 3.0)
    logits = seeded.seeded_f32(seed, (depth, vocab), scale)
    if kind == "peaked":  # the first choice holds nearly all of the probability
        favourite = seeded.seeded_below(seed + 1, (depth,), vocab)
        logits[np.arange(depth), favourite] += np.float32(14)
    elif kind == "ties":
        logits = np.rint(logits / np.float32(2)) * np.float32(2)
    elif (
        kind == "sparse"
    ):  # a grammar's mask: most tokens impossible, all of them at the last depth
        logits[seeded.seeded_below(seed + 1, logits.shape, 4) > 0] = -np.inf
        logits[-1, :] = -np.inf
    return kdtr.to_f32(kdtr.bf16(logits))


def draft(kind, seed, depth, vocab, k):
    """(logp [depth, k], ids [depth, k]), the same bytes on any machine."""
    logits = draft_logits(kind, seed, depth, vocab)
    logp, ids, _ = draft_topk(logits, k, seeded.portable_log_z(logits))
    return logp, ids


def draw_tree(kind, seed, n_nodes, depth=15, vocab=200):
    """A built tree of exactly n_nodes."""
    logp, ids = draft(kind, seed, depth, vocab, min(vocab, max(n_nodes - 1, 1)))
    tree = tree_build(logp, ids, n_nodes - 1, root_token=seed % vocab)
    assert tree.n_nodes == n_nodes
    return tree
