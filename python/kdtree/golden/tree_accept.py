"""Cases of tree_accept: greedy and sampled walks on built trees."""

import numpy as np

from kdtree.golden import seeded
from kdtree.golden.case import Case, i32
from kdtree.golden.drafts import draw_tree
from kdtree.golden.layout import row_batch
from kdtree.ref import ancestors, tree_build
from kdtree.ref.sampler import Sampling, sample_token
from kdtree.ref.tree_accept import tree_accept_logits

MIN_MARGIN = 1e-6  # nearer draws may differ between math libraries: no case may hold one


def target_logits(seed, tree, vocab, boost):
    """[N, vocab] fp32 in which most nodes favour one of their children by `boost`, so that walks
    go deep and still leave the tree."""
    logits = seeded.seeded_f32(seed, (tree.n_nodes, vocab), 1.5)
    coin = seeded.seeded_below(seed + 1, (tree.n_nodes,), 12)
    for node in range(tree.n_nodes):
        children = np.flatnonzero(tree.parent == node)
        if len(children) and coin[node] < 11:
            child = children[0 if coin[node] < 8 else coin[node] % len(children)]
            logits[node, tree.token[child]] += np.float32(boost)
    return logits


def accept_batch(name, seed, requests, note, with_targets=True):
    """requests: B tuples (tree, logits [N, vocab], Sampling)."""
    trees = [tree for tree, _, _ in requests]
    layout, _ = row_batch(seed, [tree.n_nodes for tree in trees], [0] * len(trees))
    prefix = seeded.seeded_below(seed + 3, (len(trees),), 5000)
    max_accepted = 1 + max(int(tree.depth.max()) for tree in trees)
    outputs = {
        "accepted": np.full((len(trees), max_accepted), -1, np.int32),
        "n_accepted": [],
        "bonus": [],
        "status": [],
        "targets": [],
    }
    for b, (tree, logits, sampling) in enumerate(requests):
        try:
            accepted, bonus, draws = tree_accept_logits(tree, logits, prefix[b], sampling)
            status = 0
        except ValueError:
            accepted, bonus, draws, status = [0], -1, [], 1
        if with_targets:
            draws = [
                sample_token(logits[i], int(prefix[b] + tree.depth[i]) + 1, sampling)
                for i in range(tree.n_nodes)
            ]
            outputs["targets"] += [draw.token for draw in draws]
        assert all(
            min(d.margin, d.filter_margin) > MIN_MARGIN for d in draws if sampling.temperature > 0
        ), f"{name}: a draw too near to call, change the seed"
        outputs["accepted"][b, : len(accepted)] = accepted
        for field, value in (("n_accepted", len(accepted)), ("bonus", bonus), ("status", status)):
            outputs[field].append(value)
    outputs = {
        field: np.array(value, np.int32)
        for field, value in outputs.items()
        if field != "targets" or with_targets
    }
    return Case(
        "tree_accept", name, seed, arguments(requests, layout, prefix, max_accepted), outputs, note
    )


def arguments(requests, layout, prefix, max_accepted):
    trees, logits, sampling = zip(*requests)
    links = [tree_build.child_links(tree.parent) for tree in trees]
    positions = [ancestors.positions(tree.depth, p) for tree, p in zip(trees, prefix)]
    return {
        "logits": np.concatenate(logits),
        "tokens": np.concatenate([t.token for t in trees]),
        "positions": np.concatenate(positions).astype(np.int32),
        "first_child": np.concatenate([first for first, _ in links]),
        "next_sibling": np.concatenate([following for _, following in links]),
        "row_offset": layout["row_offset"],
        "n_nodes": layout["n_nodes"],
        "sampling.temperature": np.array([s.temperature for s in sampling], np.float32),
        "sampling.top_p": np.array([s.top_p for s in sampling], np.float32),
        "sampling.min_p": np.array([s.min_p for s in sampling], np.float32),
        "sampling.top_k": np.array([s.top_k for s in sampling], np.int32),
        "sampling.seed": np.array([s.seed for s in sampling], np.uint64),
        "max_accepted": i32(max_accepted),
    }


def drawn(seed, sampling, n_nodes=17, vocab=50, kind="realistic", boost=10.0):
    tree = draw_tree(kind, seed, n_nodes, vocab=vocab)
    return tree, target_logits(seed + 5, tree, vocab, boost), sampling


SAMPLERS = (
    Sampling(1.0, seed=1),
    Sampling(0.6, top_p=0.95, seed=2),
    Sampling(1.0, top_k=5, seed=3),
    Sampling(1.3, min_p=0.1, seed=2**63 + 4),
    Sampling(0.9, 20, 0.9, 0.05, 0xFFFFFFFFFFFFFFFF),
    Sampling(5.0, top_p=0.3, seed=6),
    Sampling(0.05, seed=7),
    Sampling(0.0, seed=8),
)


def cases():
    greedy = [
        drawn(4000 + 10 * b, Sampling(), n, kind=kind)
        for b, (n, kind) in enumerate(
            [(17, "realistic"), (1, "flat"), (33, "peaked"), (40, "ties")]
        )
    ]
    yield accept_batch("greedy", 4000, greedy, "trees of 17, 1, 33 and 40 nodes")
    ties = [(tree, np.rint(logits), sampling) for tree, logits, sampling in greedy]
    yield accept_batch("greedy_ties", 4001, ties, "whole-numbered logits: ties to the lower id")
    chain = tree_build.chain(seeded.seeded_below(4100, (15,), 50), root_token=7)
    yield accept_batch(
        "chain",
        4100,
        [(chain, target_logits(4105, chain, 50, 12.0), Sampling())],
        "the plain draft as a tree",
    )
    yield accept_batch(
        "sampled",
        4210,
        [drawn(4210 + 10 * b, s) for b, s in enumerate(SAMPLERS)],
        "one request per kind of sampling, 64-bit seeds; the last is greedy",
    )
    yield accept_batch(
        "sampled_wide",
        4300,
        [drawn(4300, SAMPLERS[1], 33, vocab=1003)],
        "more tokens, a vocabulary that is no multiple of 4",
    )
    masked = [drawn(4400 + 10 * b, s) for b, s in enumerate(SAMPLERS)]
    for _, logits, _ in masked:
        logits[seeded.seeded_below(4401, logits.shape, 4) == 0] = -np.inf
    yield accept_batch("masked", 4410, masked, "a quarter of the logits is -inf")
    bad = [drawn(4210 + 10 * b, Sampling(seed=9)) for b in range(4)]
    bad[0][1][0, 3], bad[1][1][0, :], bad[3][1][0, 4] = np.nan, -np.inf, np.inf
    off_path = sorted(set(range(17)) - set(tree_accept_logits(*bad[2][:2], 0, Sampling())[0]))
    bad[2][1][off_path, 1] = np.nan
    yield accept_batch(
        "bad_rows",
        4500,
        bad,
        "NaN, all -inf and +inf at the root fail their request; "
        "NaN off the path of request 2 does not matter",
        with_targets=False,
    )
