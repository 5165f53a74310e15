"""Best-first draft tree from per-depth log-probabilities.

Source: DDTree (arXiv 2604.12989), Algorithm 1 and its reference code. The prefixes with the highest
product of per-depth probabilities are prefix-closed, so a heap that pushes a node's next sibling
and first child when the node pops yields the optimal tree in at most `budget` pops.
"""

import heapq
from dataclasses import dataclass

import numpy as np


@dataclass
class Tree:
    """Flat tree of N nodes: node 0 is the root, node ids are the pop order."""

    token: np.ndarray  # [N] int32; token[0] is the root's own token
    parent: np.ndarray  # [N] int32; parent[i] < i, parent[0] = -1
    depth: np.ndarray  # [N] int32; depth[0] = 0
    rank: np.ndarray  # [N] int32; rank among the candidates of its depth, 0 for the root
    logw: np.ndarray  # [N] float64; log of the path probability, 0 for the root

    @property
    def n_nodes(self):
        return len(self.token)


def tree_build(logp, ids, budget, max_depth=None, max_rank=None, root_token=0):
    """logp [L, K] fp32 (each row descending), ids [L, K] int32 -> Tree of at most budget + 1 nodes.

    max_depth caps the depth below L, max_rank the candidates per depth below K. Ties in logw go to
    the lexicographically smallest tuple of ranks. Entries of -inf never enter, and a depth with
    none left ends there. Raises ValueError on NaN or +inf.
    """
    if np.isnan(logp).any() or np.isposinf(logp).any():
        raise ValueError("draft log-probabilities contain NaN or +inf")
    lp = np.asarray(logp, np.float64).tolist()
    limit = len(lp) if max_depth is None else min(max_depth, len(lp))
    n_ranks = logp.shape[1] if max_rank is None else min(max_rank, logp.shape[1])
    nodes = [(int(root_token), -1, 0, 0, 0.0)]
    heap = []

    def push(logw, ranks, parent, depth):
        """A node at `depth` >= 1 whose path of candidate ranks is `ranks`."""
        if lp[depth - 1][ranks[-1]] > -np.inf:
            heapq.heappush(heap, (-logw, ranks, parent, depth))

    if budget > 0 and limit > 0 and n_ranks > 0:
        push(lp[0][0], (0,), 0, 1)
    while heap and len(nodes) <= budget:
        negative, ranks, parent, depth = heapq.heappop(heap)
        logw, rank, node = -negative, ranks[-1], len(nodes)
        nodes.append((int(ids[depth - 1][rank]), parent, depth, rank, logw))
        if rank + 1 < n_ranks:
            # The order of operations is part of the contract: it decides near-ties.
            sibling = (logw - lp[depth - 1][rank]) + lp[depth - 1][rank + 1]
            push(sibling, ranks[:-1] + (rank + 1,), parent, depth)
        if depth < limit:
            push(logw + lp[depth][0], ranks + (0,), node, depth + 1)
    token, parent, depth, rank, logw = zip(*nodes)
    return Tree(
        np.array(token, np.int32),
        np.array(parent, np.int32),
        np.array(depth, np.int32),
        np.array(rank, np.int32),
        np.array(logw, np.float64),
    )


def child_links(parent):
    """parent [N] -> (first_child [N], next_sibling [N]) int32 node ids or -1, in rank order."""
    first_child = np.full(len(parent), -1, np.int32)
    next_sibling = np.full(len(parent), -1, np.int32)
    last_child = {}
    for node in range(1, len(parent)):
        p = int(parent[node])
        if p in last_child:
            next_sibling[last_child[p]] = node
        else:
            first_child[p] = node
        last_child[p] = node
    return first_child, next_sibling


def chain(tokens, root_token=0):
    """The plain DFlash draft as a tree: one child per node. tokens [L] -> Tree of L + 1 nodes."""
    n = len(tokens) + 1
    return Tree(
        np.array([root_token, *tokens], np.int32),
        np.arange(-1, n - 1, dtype=np.int32),
        np.arange(n, dtype=np.int32),
        np.zeros(n, np.int32),
        np.zeros(n, np.float64),
    )
