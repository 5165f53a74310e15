"""Tree references against brute force: every prefix enumerated, every walk written out."""

import itertools
import math

import numpy as np
import pytest

from kdtree.ref import ancestors, draft_topk, tree_accept, tree_build


def random_logp(rng, depth, vocab, tie_grid=None):
    """[depth, vocab] fp32 descending log-probabilities; tie_grid quantizes the logits."""
    logits = rng.normal(size=(depth, vocab)) * 2
    if tie_grid:
        logits = np.round(logits / tie_grid) * tie_grid
    logp, ids, _ = draft_topk.draft_topk(logits.astype(np.float32), vocab)
    return logp, ids


def path_score(lp, ranks, sibling=lambda score, old, new: (score - old) + new):
    """The contract's float64 order of operations: down by first children, right by siblings."""
    score = 0.0
    for d, rank in enumerate(ranks):
        score += lp[d][0]
        for r in range(rank):
            score = sibling(score, lp[d][r], lp[d][r + 1])
    return score


def enumerate_best(logp, budget, max_depth, max_rank):
    """All prefixes by (score descending, rank tuple ascending), cut at the budget."""
    lp = logp.astype(np.float64).tolist()
    prefixes = []
    for depth in range(1, max_depth + 1):
        for ranks in itertools.product(range(max_rank), repeat=depth):
            if all(lp[d][r] > -math.inf for d, r in enumerate(ranks)):
                prefixes.append((-path_score(lp, ranks), ranks))
    return sorted(prefixes)[:budget]


def rank_paths(tree):
    paths = [()]
    for i in range(1, tree.n_nodes):
        paths.append(paths[tree.parent[i]] + (int(tree.rank[i]),))
    return paths


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("tie_grid", [None, 2.0])
def test_best_first_equals_enumeration(seed, tie_grid):
    rng = np.random.default_rng(seed)
    depth, vocab = rng.integers(1, 5), rng.integers(1, 6)
    logp, ids = random_logp(rng, depth, vocab, tie_grid)
    if tie_grid:  # exact ties in the sums too, so that only the rank tuple decides
        logp = (np.round(logp * 4) / 4).astype(np.float32)
    max_depth, max_rank = rng.integers(1, depth + 1), rng.integers(1, vocab + 1)
    for budget in (0, 1, 2, 7, 30, 2000):
        tree = tree_build.tree_build(logp, ids, budget, max_depth, max_rank, root_token=99)
        expected = enumerate_best(logp, budget, max_depth, max_rank)
        assert rank_paths(tree)[1:] == [ranks for _, ranks in expected]
        assert tree.logw[1:].tolist() == [-negative for negative, _ in expected]
        assert tree.token[0] == 99 and tree.parent[0] == -1 and tree.depth[0] == 0
        for i in range(1, tree.n_nodes):
            assert tree.parent[i] < i and tree.depth[i] == tree.depth[tree.parent[i]] + 1
            assert tree.token[i] == ids[tree.depth[i] - 1][tree.rank[i]]


def test_propositions_1_and_2():
    """Prop. 1: the expected acceptance under Q is the sum of path probabilities. Prop. 2: no other
    prefix-closed tree of the same size has more."""
    rng = np.random.default_rng(5)
    logp, ids = random_logp(rng, 2, 3)
    q = np.exp(logp.astype(np.float64))
    tree = tree_build.tree_build(logp, ids, 5)
    paths = set(rank_paths(tree)[1:])

    def expected_acceptance(paths):
        total = 0.0
        for ranks in itertools.product(range(3), repeat=2):
            length = sum(ranks[:d] in paths for d in (1, 2))
            total += q[0][ranks[0]] * q[1][ranks[1]] * length
        return total

    assert expected_acceptance(paths) == pytest.approx(
        np.exp(tree.logw[1:]).sum(), rel=1e-7
    )  # fp32 logp
    every = [p for d in (1, 2) for p in itertools.product(range(3), repeat=d)]
    for other in itertools.combinations(every, 5):
        closed = set(other)
        if all(len(p) == 1 or p[:-1] in closed for p in closed):
            assert expected_acceptance(closed) <= expected_acceptance(paths) + 1e-7


def test_scores_keep_the_order_of_operations():
    """Log-probabilities of very different size, so that float64 sums round and the order shows."""
    rng = np.random.default_rng(8)
    exponents = rng.integers(-40, -10, (4, 6))
    exponents[0] = 1
    logp = np.ldexp(-rng.random((4, 6)).astype(np.float32), exponents)
    logp = np.sort(logp)[:, ::-1]
    lp = logp.astype(np.float64).tolist()
    tree = tree_build.tree_build(logp, np.tile(np.arange(6, dtype=np.int32), (4, 1)), 400)
    n_other = 0
    for ranks, logw in zip(rank_paths(tree)[1:], tree.logw[1:]):
        assert logw == path_score(lp, ranks)
        n_other += logw != path_score(lp, ranks, lambda score, old, new: score + (new - old))
    assert n_other > 10


def test_minus_inf_never_enters_and_ends_its_depth():
    logp = np.array([[-1, -2, -np.inf], [-np.inf] * 3, [-1, -1, -1]], np.float32)
    ids = np.tile(np.arange(3, dtype=np.int32), (3, 1))
    tree = tree_build.tree_build(logp, ids, 10)
    assert tree.token.tolist() == [0, 0, 1] and tree.depth.tolist() == [0, 1, 1]
    dead = tree_build.tree_build(
        np.full((2, 2), -np.inf, np.float32), ids[:2, :2], 10, root_token=4
    )
    assert dead.token.tolist() == [4]
    with pytest.raises(ValueError, match="NaN"):
        tree_build.tree_build(np.array([[np.nan]], np.float32), ids[:1, :1], 1)


def test_a_single_rank_gives_a_chain():
    logp, ids = random_logp(np.random.default_rng(1), 6, 9)
    tree = tree_build.tree_build(logp, ids, 6, max_rank=1, root_token=3)
    expected = tree_build.chain(ids[:, 0], root_token=3)
    for field in ("token", "parent", "depth", "rank"):
        assert (getattr(tree, field) == getattr(expected, field)).all()


def test_child_links_list_children_in_rank_order():
    logp, ids = random_logp(np.random.default_rng(2), 4, 5)
    tree = tree_build.tree_build(logp, ids, 60)
    first_child, next_sibling = tree_build.child_links(tree.parent)
    for node in range(tree.n_nodes):
        children, child = [], first_child[node]
        while child >= 0:
            children.append(child)
            child = next_sibling[child]
        assert children == np.flatnonzero(tree.parent == node).tolist()
        assert tree.rank[children].tolist() == list(range(len(children)))


def test_visibility_is_ancestors_and_self():
    logp, ids = random_logp(np.random.default_rng(3), 5, 6)
    tree = tree_build.tree_build(logp, ids, 130)
    words = ancestors.ancestor_words(tree.parent)
    assert words.shape == (131, 3) and words.dtype == np.uint64
    for i in range(tree.n_nodes):
        line, node = set(), i
        while node >= 0:
            line.add(node)
            node = tree.parent[node]
        seen = {j for j in range(192) if (int(words[i, j // 64]) >> (j % 64)) & 1}
        assert seen == line
    assert (ancestors.unpack_words(words, 131) == ancestors.visibility(tree.parent)).all()
    assert (ancestors.ancestor_words(tree.parent, 5)[:, 3:] == 0).all()
    assert ancestors.positions(tree.depth, 70).tolist() == (70 + tree.depth).tolist()


def test_draft_topk_order_padding_and_errors():
    logits = np.array([[1, 3, -np.inf, 3, 2], [0, 0, 0, 0, 0]], np.float32)
    logp, ids, log_z = draft_topk.draft_topk(logits, 7)
    assert ids.tolist() == [[1, 3, 4, 0, -1, -1, -1], [0, 1, 2, 3, 4, -1, -1]]
    assert log_z[1] == np.float32(math.log(5)) and (logp[1, :5] == -log_z[1]).all()
    assert log_z[0] == np.float32(math.log(math.exp(1) + 2 * math.exp(3) + math.exp(2)))
    assert (logp[0, :4] == np.array([3, 3, 2, 1], np.float32) - log_z[0]).all()
    assert np.isneginf(logp[:, 5:]).all() and np.isneginf(logp[0, 4])
    many = draft_topk.draft_topk(np.zeros((1, 5000), np.float32), 300)[1]
    assert many[0].tolist() == list(range(300))
    assert np.isneginf(draft_topk.draft_topk(np.full((1, 3), -np.inf), 2)[0]).all()
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="NaN"):
            draft_topk.draft_topk(np.array([[0, bad]], np.float32), 1)


@pytest.mark.parametrize("seed", range(20))
def test_accept_equals_the_recurrence(seed):
    """accepted[i] iff token[i] == target[parent[i]] and accepted[parent[i]]."""
    rng = np.random.default_rng(seed)
    logp, ids = random_logp(rng, 6, 4)
    tree = tree_build.tree_build(logp, ids, 40)
    target = rng.integers(0, 4, tree.n_nodes)
    accepted = [True]
    for i in range(1, tree.n_nodes):
        parent = tree.parent[i]
        accepted.append(bool(accepted[parent] and tree.token[i] == target[parent]))
    path, bonus = tree_accept.tree_accept(tree, lambda node: int(target[node]))
    assert path == np.flatnonzero(accepted).tolist() and bonus == target[path[-1]]
