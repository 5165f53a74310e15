"""Cases of kv_commit: accepted rows over page edges, several layers, drafter features."""

import numpy as np

from kdtree import kdtr
from kdtree.golden import seeded
from kdtree.golden.case import Case, i32
from kdtree.golden.layout import row_batch
from kdtree.golden.seeded import Seeded
from kdtree.ref.kv_commit import gather_features, kv_commit


def commit_case(name, seed, n_nodes, prefix, accepted, note, n_features=0):
    """n_nodes, prefix, accepted (lists of node ids): one entry per request."""
    rows, n_layers, width = sum(n_nodes), 3, 16
    layout, n_pages = row_batch(seed, n_nodes, prefix)
    tail = Seeded(seed + 1, (n_layers, rows, width), 1.0)
    before = Seeded(seed + 2, (n_layers, n_pages, 64, width), 1.0)
    table = np.full((len(n_nodes), max(map(len, accepted))), -1, np.int32)
    pages = before.make().codes
    for b, nodes in enumerate(accepted):
        table[b, : len(nodes)] = nodes
        own = slice(layout["row_offset"][b], layout["row_offset"][b] + n_nodes[b])
        pages = kv_commit(
            pages, layout["block_table"][b], tail.make().codes[:, own], nodes, prefix[b]
        )
    counts = np.array([len(nodes) for nodes in accepted], np.int32)
    inputs = {
        **layout,
        "tail": tail,
        "pages": before,
        "n_accepted": counts,
        "max_accepted": i32(table.shape[1]),
    }
    if any(nodes != list(range(len(nodes))) for nodes in accepted):
        inputs["accepted"] = table
    outputs = {"pages_after": kdtr.Tensor("bf16", pages)}
    if n_features:
        inputs["features"] = seeded.seeded_f32(seed + 3, (n_features, rows, 12), 1.0)
        inputs["feature_offset"] = (np.cumsum(counts) - counts).astype(np.int32)
        outputs["features_out"] = np.concatenate(
            [
                gather_features(inputs["features"], nodes, offset)
                for nodes, offset in zip(accepted, layout["row_offset"])
            ]
        )
    return Case("kv_commit", name, seed, inputs, outputs, note)


def cases():
    yield commit_case(
        "page_edge", 6000, [9], [62], [[0, 2, 3, 8]], "positions 62 .. 65", n_features=2
    )
    yield commit_case(
        "batch",
        6010,
        [5, 17, 1, 8],
        [0, 63, 200, 64],
        [[0, 4], [0, 1, 7, 9, 16], [], [0]],
        "different lengths; request 2 has nothing to do",
        n_features=4,
    )
    yield commit_case(
        "in_order",
        6020,
        [70, 3],
        [10, 128],
        [list(range(70)), [0, 1, 2]],
        "no list of accepted nodes: rows 0, 1, 2, ... as in prefill",
    )
