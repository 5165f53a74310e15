"""Cases of tree_build: batches of drafts of different character, limits and layouts."""

import numpy as np

from kdtree.golden import seeded
from kdtree.golden.case import Case
from kdtree.golden.drafts import draft
from kdtree.ref import ancestors, tree_build

FIELDS = (
    "tokens",
    "parents",
    "depths",
    "positions",
    "scores",
    "ancestors",
    "first_child",
    "next_sibling",
)


def padded_rows(tree, budget, prefix, n_words):
    """The budget + 1 rows that a request owns: its nodes, then padding that looks like the root."""
    n, rows = tree.n_nodes, budget + 1
    first_child, next_sibling = tree_build.child_links(tree.parent)
    out = {
        "tokens": np.full(rows, tree.token[0], np.int32),
        "parents": np.full(rows, -1, np.int32),
        "depths": np.zeros(rows, np.int32),
        "positions": np.full(rows, prefix, np.int32),
        "scores": np.zeros(rows),
        "ancestors": np.zeros((rows, n_words), np.uint64),
        "first_child": np.full(rows, -1, np.int32),
        "next_sibling": np.full(rows, -1, np.int32),
    }
    out["ancestors"][:, 0] = 1
    nodes = (
        tree.token,
        tree.parent,
        tree.depth,
        ancestors.positions(tree.depth, prefix),
        tree.logw,
        ancestors.ancestor_words(tree.parent, n_words),
        first_child,
        next_sibling,
    )
    for field, value in zip(FIELDS, nodes):
        out[field][:n] = value
    return out


def build_batch(name, seed, drafts, budgets, note, max_depth=None, max_rank=None, order=None):
    """drafts: B pairs (logp [L, K], ids [L, K]); order: the requests as their rows lie."""
    batch = len(drafts)
    logp, ids = (np.stack(part) for part in zip(*drafts))
    max_depth = [logp.shape[1]] * batch if max_depth is None else max_depth
    max_rank = [logp.shape[2]] * batch if max_rank is None else max_rank
    prefix_len = seeded.seeded_below(seed + 7, (batch,), 300)
    root_token = seeded.seeded_below(seed + 8, (batch,), 50)
    n_words = (max(budgets) + 64) // 64
    row_offset, n_rows = np.zeros(batch, np.int32), 0
    rows = {}
    for b in range(batch) if order is None else order:
        tree = tree_build.tree_build(
            logp[b], ids[b], budgets[b], max_depth[b], max_rank[b], root_token[b]
        )
        rows[b] = (tree.n_nodes, padded_rows(tree, budgets[b], prefix_len[b], n_words))
        row_offset[b] = n_rows
        n_rows += budgets[b] + 1
    inputs = {
        "logp": logp,
        "ids": ids,
        "budget": np.array(budgets, np.int32),
        "max_depth": np.array(max_depth, np.int32),
        "max_rank": np.array(max_rank, np.int32),
        "root_token": root_token,
        "prefix_len": prefix_len,
        "row_offset": row_offset,
    }
    outputs = {
        field: np.concatenate([part[field] for _, part in rows.values()]) for field in FIELDS
    }
    outputs["n_nodes"] = np.array([rows[b][0] for b in range(batch)], np.int32)
    return Case("tree_build", name, seed, inputs, outputs, note)


def budget_cases():
    """Every budget on every kind of draft, at depths up to 15."""
    kinds = ("realistic", "peaked", "flat", "ties", "sparse")
    for seed, (budget, depth) in enumerate(
        [(1, 5), (8, 1), (15, 7), (16, 15), (32, 15), (64, 15), (256, 7)], start=1000
    ):
        drafts = [draft(kind, seed * 10 + i, depth, 700, budget) for i, kind in enumerate(kinds)]
        yield build_batch(
            f"budget{budget}",
            seed,
            drafts,
            [budget] * len(kinds),
            "one request of each kind of draft: " + ", ".join(kinds),
        )
    yield build_batch(
        "budget1024",
        1020,
        [draft("flat", 10200, 3, 1500, 1024), draft("realistic", 10201, 3, 1500, 1024)],
        [1024, 1024],
        "the largest budget",
    )
    yield build_batch(
        "budget1024_deep",
        1021,
        [draft("peaked", 10210, 31, 1500, 200)],
        [1024],
        "the largest budget and depth",
    )


def shape_cases():
    yield build_batch(
        "depths",
        1100,
        [draft("peaked", 11000 + b, 31, 64, 8) for b in range(31)],
        [40] * 31,
        "depth limits 1 .. 31",
        max_depth=range(1, 32),
    )
    kinds = ("realistic", "peaked", "flat", "ties")
    yield build_batch(
        "batch64",
        1101,
        [draft(kinds[b % 4], 12000 + b, 8, 90, 24) for b in range(64)],
        [(0, 1, 7, 24, 33)[b % 5] for b in range(64)],
        "64 requests with budgets, depths, ranks and row order of their own",
        max_depth=[b % 9 for b in range(64)],
        max_rank=[1 + b % 24 for b in range(64)],
        order=seeded.seeded_permutation(1102, 64),
    )
    yield build_batch(
        "vocab_below_budget",
        1103,
        [draft("realistic", 13000, 3, 3, 5)],
        [64],
        "39 nodes exist for a budget of 64, then padding",
    )
    yield build_batch(
        "chain",
        1104,
        [draft("realistic", 14000 + b, 15, 100, 4) for b in range(2)],
        [15, 6],
        "one candidate per depth",
        max_rank=[1, 1],
    )


def tie_and_hole_cases():
    equal = (np.full((5, 6), -2.0, np.float32), np.tile(np.arange(6, dtype=np.int32), (5, 1)))
    certain = (
        np.array([[0, -np.inf], [0, -np.inf], [0, 0]], np.float32),
        np.array([[3, -1], [4, -1], [5, 6]], np.int32),
    )
    none = (np.full((5, 6), -np.inf, np.float32), np.full((5, 6), -1, np.int32))
    words = seeded.stream_u32(1203, 5 * 8).reshape(5, 8)
    shifts = 10 + seeded.seeded_below(1204, (5, 8), 35)
    shifts[0] = 3
    wide = -np.ldexp((words >> np.uint32(8)).astype(np.float32), -20 - shifts)
    uneven = np.sort(wide)[:, ::-1], np.tile(np.arange(8, dtype=np.int32), (5, 1))
    yield build_batch(
        "uneven",
        1203,
        [uneven],
        [300],
        "log-probabilities of very different size: "
        "float64 sums round, so the order of operations shows",
    )
    yield build_batch("all_equal", 1200, [equal], [200], "only the rank tuple orders the nodes")
    yield build_batch(
        "certain", 1201, [certain], [20], "log-probability 0: children tie with parents"
    )
    good = draft("realistic", 15000, 5, 60, 6)
    yield build_batch(
        "failed_request",
        1202,
        [good, none, good],
        [12, 12, 12],
        "request 1 had NaN logits: draft_topk left it (-inf, -1), so only its root",
    )


def cases():
    yield from budget_cases()
    yield from shape_cases()
    yield from tie_and_hole_cases()
