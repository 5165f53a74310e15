"""Walks a verified draft tree along the target's own tokens.

Source: DDTree (arXiv 2604.12989) and SpecInfer's naive sampling (arXiv 2305.09781): every node's
target token is drawn once, and the walk follows the child that carries it. Every emitted token is
a draw of the target given its path, so the result is exact at any temperature.
"""

from .sampler import sample_token


def tree_accept(tree, target):
    """tree: Tree of N nodes; target(node) -> the target's token after that node
    -> (accepted list of node ids root .. deepest, bonus = target of the deepest).

    Only the nodes of the path are asked for their target.
    """
    node, accepted = 0, []
    while node is not None:
        accepted.append(node)
        bonus = target(node)
        children = (i for i in range(node + 1, tree.n_nodes) if tree.parent[i] == node)
        node = next((i for i in children if tree.token[i] == bonus), None)
    return accepted, bonus


def tree_accept_logits(tree, logits, start, sampling):
    """logits [N, V] fp32, start = position of the root -> (accepted, bonus, draws of the path).

    Raises ValueError where a row of the path has NaN, +inf, or no finite logit.
    """
    draws = []

    def target(node):
        draws.append(sample_token(logits[node], start + int(tree.depth[node]) + 1, sampling))
        return draws[-1].token

    accepted, bonus = tree_accept(tree, target)
    return accepted, bonus, draws
