"""Who sees whom inside a draft tree, packed in 64-bit words, and the nodes' positions.

A node sees its ancestors and itself, never siblings or other branches (arXiv 2604.12989, the
visibility of its reference code). Bit j % 64 of word j // 64 says that node j is visible.
"""

import numpy as np


def visibility(parent):
    """parent [N] int32 (parent[0] = -1) -> [N, N] bool, row i = the nodes that node i sees."""
    n = len(parent)
    visible = np.zeros((n, n), bool)
    for i in range(n):
        if parent[i] >= 0:
            visible[i] = visible[parent[i]]
        visible[i, i] = True
    return visible


def ancestor_words(parent, n_words=None):
    """parent [N] -> uint64 [N, n_words]; n_words defaults to ceil(N / 64)."""
    n = len(parent)
    n_words = (n + 63) // 64 if n_words is None else n_words
    bits = np.zeros((n, n_words * 64), np.uint8)
    bits[:, :n] = visibility(parent)
    return np.packbits(bits, axis=1, bitorder="little").view("<u8").astype(np.uint64)


def unpack_words(words, n_nodes):
    """uint64 [R, W] -> bool [R, n_nodes]."""
    octets = np.ascontiguousarray(words, "<u8").view(np.uint8)
    return np.unpackbits(octets, axis=1, bitorder="little", count=n_nodes).astype(bool)


def positions(depth, start):
    """depth [N], start = the root's position -> [N] int64; siblings share a position."""
    return np.asarray(depth, np.int64) + start
