"""Cases of verify_attention: heads, prefixes around page edges, trees, scales, batches."""

import numpy as np

from kdtree.golden.case import Case, values
from kdtree.golden.drafts import draw_tree
from kdtree.golden.layout import packed_ancestors, row_batch
from kdtree.golden.real_model import one_round
from kdtree.golden.seeded import Seeded
from kdtree.kdtr import bf16
from kdtree.ref.verify_attention import verify_attention

# 192^-0.5 times the square of the YaRN mscale of factor 64: the scale of Kimi K2.6.
SCALE = np.float32(0.14467962)
WIDTH = 576


def reference(inputs):
    """out [R, H, 512], lse [R, H], fp32, of the tensors of a case."""
    query, pages, tail = (values(inputs[name]) for name in ("q", "kv_pages", "tail"))
    out = np.zeros((*query.shape[:2], 512), np.float32)
    lse = np.full(query.shape[:2], -np.inf, np.float32)
    for b, (offset, n) in enumerate(zip(inputs["row_offset"], inputs["n_nodes"])):
        rows = slice(offset, offset + n)
        words = inputs["ancestors"][rows] if "ancestors" in inputs else None
        out[rows], lse[rows] = verify_attention(
            query[rows],
            pages,
            inputs["block_table"][b],
            inputs["prefix_len"][b],
            tail[rows],
            np.float64(inputs["scale"]),
            words,
        )
    return {"out": out, "lse": lse}


def case(name, seed, heads, prefix, trees, note, scales=(1.0, 1.0), chain=False):
    """prefix, trees: B lists; scales: standard deviations of the queries and of the latents."""
    rows = sum(tree.n_nodes for tree in trees)
    layout, n_pages = row_batch(seed, [tree.n_nodes for tree in trees], prefix)
    inputs = {
        **layout,
        "scale": SCALE,
        "q": Seeded(seed + 1, (rows, heads, WIDTH), scales[0]),
        "kv_pages": Seeded(seed + 2, (n_pages, 64, WIDTH), scales[1]),
        "tail": Seeded(seed + 3, (rows, WIDTH), scales[1]),
    }
    if not chain:
        inputs["ancestors"] = packed_ancestors(trees)
    return Case("verify_attention", name, seed, inputs, reference(inputs), note)


def prefix_cases():
    """Prefixes at page edges and beyond, with 4, 8, 16 and 64 heads."""
    for i, (prefix, heads, n) in enumerate(
        [
            (0, 8, 17),
            (1, 4, 8),
            (63, 8, 16),
            (64, 16, 8),
            (65, 4, 65),
            (1000, 64, 4),
            (2000, 16, 5),
            (5000, 8, 9),
        ]
    ):
        seed = 3000 + 10 * i
        note = "a tree of 65 nodes on an odd offset" if n == 65 else ""
        yield case(
            f"prefix{prefix}_heads{heads}",
            seed,
            heads,
            [prefix],
            [draw_tree("realistic", seed, n)],
            note,
        )
    yield case("root_only", 3100, 8, [130], [draw_tree("flat", 3100, 1)], "plain decoding")
    yield case("root_alone", 3110, 4, [0], [draw_tree("flat", 3110, 1)], "no prefix, one node")
    yield case("deep_tree", 3120, 4, [70], [draw_tree("peaked", 3120, 16)], "nearly a chain")
    yield case("wide_tree", 3130, 4, [10], [draw_tree("flat", 3130, 70)], "two ancestor words")
    yield case(
        "chain",
        3140,
        4,
        [37],
        [draw_tree("flat", 3140, 9)],
        "causal tail, no ancestor words",
        chain=True,
    )


def scale_cases():
    yield case(
        "small_inputs",
        3200,
        4,
        [100],
        [draw_tree("realistic", 3200, 8)],
        "inputs of standard deviation 0.05: nearly uniform weights",
        scales=(0.05, 0.05),
    )
    yield case(
        "large_inputs",
        3210,
        4,
        [150],
        [draw_tree("realistic", 3210, 8)],
        "scores above 150: exp overflows fp32 unless the maximum is subtracted",
        scales=(4.0, 4.0),
    )


def batch_cases():
    sizes, prefix = [8, 1, 0, 5, 3], [64, 300, 10, 0, 129]
    trees = [draw_tree("realistic", 3300 + b, max(n, 1)) for b, n in enumerate(sizes)]
    trees = [tree for tree, n in zip(trees, sizes) if n]
    layout, n_pages = row_batch(3300, sizes, prefix)
    rows = sum(sizes)
    inputs = {
        **layout,
        "scale": SCALE,
        "ancestors": packed_ancestors(trees),
        "q": Seeded(3301, (rows, 4, WIDTH), 1.0),
        "tail": Seeded(3303, (rows, WIDTH), 1.0),
        "kv_pages": Seeded(3302, (n_pages, 64, WIDTH), 1.0),
    }
    yield Case(
        "verify_attention",
        "batch",
        3300,
        inputs,
        reference(inputs),
        "mixed lengths, a root alone, an idle request, a request without prefix",
    )
    blind = dict(inputs)
    blind["ancestors"] = inputs["ancestors"] * np.uint64(0)
    yield Case(
        "verify_attention",
        "blind_rows",
        3300,
        blind,
        reference(blind),
        "ancestor words 0: rows see their prefix only, without prefix nothing (0 and -inf)",
    )


def cases():
    yield from prefix_cases()
    yield from scale_cases()
    yield from batch_cases()
    yield from real_cases()


def real_cases():
    """One round of the tiny model: its own latents, queries, scale and draft tree."""
    tree, cache, tail, queries, scale = one_round(index=1, budget=16)
    prefix = cache.shape[1]
    layout, n_pages = row_batch(3400, [tree.n_nodes], [prefix])
    for layer in (0, 3):
        pages = np.zeros((n_pages, 64, WIDTH), np.float32)
        at = np.arange(prefix)
        pages[layout["block_table"][0][at // 64], at % 64] = cache[layer]
        inputs = {
            **layout,
            "scale": np.float32(scale),
            "ancestors": packed_ancestors([tree]),
            "q": bf16(queries[layer].astype(np.float32)),
            "kv_pages": bf16(pages),
            "tail": bf16(tail[layer].astype(np.float32)),
        }
        yield Case(
            "verify_attention",
            f"real_layer{layer}",
            3400,
            inputs,
            reference(inputs),
            f"activations of tiny-k2, layer {layer}",
        )


def large_cases():
    for i, (prefix, heads, n) in enumerate([(4096, 8, 65), (5000, 64, 65), (20000, 8, 257)]):
        seed = 3500 + 10 * i
        yield case(
            f"large_prefix{prefix}_heads{heads}_nodes{n}",
            seed,
            heads,
            [prefix],
            [draw_tree("realistic", seed, n)],
            "",
        )
