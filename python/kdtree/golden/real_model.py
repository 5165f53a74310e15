"""The tiny pair of models/ and prompts from the oracle file, loaded once, for cases made of real
activations. Everything runs in float64 and is rounded at the end, so that the order of additions of
another machine's BLAS does not reach the stored bits."""

import functools
import json
import pathlib

import numpy as np

from kdtree.ref import ancestors, ddtree, dflash, target_model

ROOT = pathlib.Path(__file__).parents[3]


@functools.cache
def pair():
    return target_model.Target(ROOT / "models/tiny-k2"), dflash.load(ROOT / "models/tiny-k2-dflash")


@functools.cache
def oracle():
    return json.loads((ROOT / "tests/golden/tiny_k2_reference.json").read_text())


def prompts():
    return [case["prompt_ids"] for case in oracle()]


@functools.cache
def one_round(index, budget):
    """Prefill of a prompt and its greedy continuation, one draft tree, its verification ->
    (tree, cache [layers, P, 576], tail [layers, N, 576], queries {layer: [N, H, 576]}, scale)."""
    target, drafter = pair()
    text = oracle()[index]["prompt_ids"] + oracle()[index]["greedy_ids"]
    at = np.arange(len(text))
    logits, cache, hidden = target_model.forward(target, text, at, target_model.empty_cache(target))
    ctx = dflash.context_kv(drafter, dflash.features(drafter, hidden), at)
    tree = ddtree.draft_tree(target, drafter, int(logits[-1].argmax()), ctx, budget)
    visible = np.concatenate(
        [np.ones((tree.n_nodes, len(text)), bool), ancestors.visibility(tree.parent)], axis=1
    )
    queries = {}
    _, tail, _ = target_model.forward(
        target, tree.token, ancestors.positions(tree.depth, len(text)), cache, visible, queries
    )
    return tree, cache, tail, queries, target_model.attention_scale(target)
