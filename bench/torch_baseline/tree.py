"""Best-first draft tree on the CPU with a Python heap, as the DDTree paper (arXiv 2604.12989)
describes it and as its ports build it."""

import heapq
from dataclasses import dataclass

import numpy as np
import torch


@dataclass
class Tree:
    """Node 0 is the root; node id = pop order, so parents precede children."""

    tokens: list  # token of nodes 1 .. n
    depths: list  # depth of nodes 1 .. n
    parents: list  # parent of nodes 0 .. n; -1 for the root
    children: list  # per node: {token: node id}

    def visible(self):
        """bool [n + 1, n + 1]: row i sees its ancestors and itself."""
        size = len(self.parents)
        seen = np.zeros((size, size), dtype=bool)
        seen[0, 0] = True
        for node in range(1, size):
            seen[node] = seen[self.parents[node]]
            seen[node, node] = True
        return seen


def build_tree(logits, budget):
    """logits: float32 [L, vocab] -> Tree of at most `budget` nodes besides the root.

    Path scores add up in float64; equal scores pop in lexicographic order of their rank tuples.
    """
    top, ids = torch.topk(logits, min(budget, logits.shape[-1]), dim=-1)
    logp = (top - torch.logsumexp(logits, dim=-1, keepdim=True)).tolist()
    ids = ids.tolist()
    width, limit = len(ids[0]), len(ids)
    tree = Tree([], [], [-1], [{}])
    heap = [(-logp[0][0], (0,), 0, logp[0][0])]
    while heap and len(tree.tokens) < budget:
        _, ranks, parent, score = heapq.heappop(heap)
        depth, rank = len(ranks), ranks[-1]
        node, token = len(tree.parents), ids[depth - 1][rank]
        tree.tokens.append(token)
        tree.depths.append(depth)
        tree.parents.append(parent)
        tree.children.append({})
        tree.children[parent][token] = node
        if rank + 1 < width:
            row = logp[depth - 1]
            sibling = score - row[rank] + row[rank + 1]
            heapq.heappush(heap, (-sibling, (*ranks[:-1], rank + 1), parent, sibling))
        if depth < limit:
            child = score + logp[depth][0]
            heapq.heappush(heap, (-child, (*ranks, 0), node, child))
    return tree
