"""Ragged rows and shuffled pages for the ops that know about requests."""

import numpy as np

from kdtree.golden import seeded
from kdtree.ref import ancestors

PAGE_TOKENS = 64


def row_batch(seed, n_nodes, prefix_len, capacity=None):
    """RowBatch tensors. n_nodes, prefix_len: B lists; capacity: positions that each request's pages
    must hold (default: prefix + nodes). Pages are dealt in a random order from a pool with spares;
    unused entries of the block table are -1. Rows are packed. Returns (tensors, n_pages)."""
    if capacity is None:
        capacity = [p + n for p, n in zip(prefix_len, n_nodes)]
    blocks = [-(-c // PAGE_TOKENS) for c in capacity]
    n_pages = sum(blocks) + 2
    pool = seeded.seeded_permutation(seed, n_pages)
    block_table = np.full((len(n_nodes), max(blocks)), -1, np.int32)
    for b, n in enumerate(blocks):
        block_table[b, :n] = pool[sum(blocks[:b]) :][:n]
    row_offset = np.concatenate([[0], np.cumsum(n_nodes)[:-1]])
    return {
        "row_offset": row_offset.astype(np.int32),
        "n_nodes": np.array(n_nodes, np.int32),
        "prefix_len": np.array(prefix_len, np.int32),
        "block_table": block_table,
    }, n_pages


def packed_ancestors(trees):
    """uint64 [R, W] of several trees, W for the largest."""
    n_words = max((tree.n_nodes + 63) // 64 for tree in trees)
    return np.concatenate([ancestors.ancestor_words(tree.parent, n_words) for tree in trees])
