"""Cases of moe_route and moe_experts."""

import numpy as np

from kdtree.golden import seeded
from kdtree.golden.case import Case, i32, values
from kdtree.golden.seeded import Seeded
from kdtree.ref.moe import moe_experts, moe_route


def route_case(name, seed, logits, bias, n_selected, groups, scaling, note, normalize=True):
    """logits [M, E]; groups = (n_group, topk_group)."""
    ids, weights = moe_route(
        logits, bias, n_selected, *groups, np.float64(np.float32(scaling)), normalize
    )
    assert_clear(logits, bias)
    inputs = {
        "logits": logits,
        "n_selected": i32(n_selected),
        "n_group": i32(groups[0]),
        "topk_group": i32(groups[1]),
        "scaling_factor": np.float32(scaling),
        "normalize": np.bool_(normalize),
    }
    if bias is not None:
        inputs["bias"] = bias
    outputs = {"ids": ids, "weights": weights.astype(np.float32)}
    return Case("moe_route", name, seed, inputs, outputs, note)


def assert_clear(logits, bias):
    """Choices are exact ties or differ by more than fp32 can confuse."""
    choice = 1 / (1 + np.exp(-logits.astype(np.float64))) + (0 if bias is None else bias)
    gaps = np.diff(np.sort(choice, axis=-1), axis=-1)
    assert not ((gaps > 0) & (gaps < 5e-7)).any(), "a near-tie of experts: change the seed"


def route_cases():
    def logits(seed, *shape):
        return seeded.seeded_f32(seed, shape, 1.5)

    def bias(seed, n, offset=0.0):
        return seeded.seeded_f32(seed, (n,), 0.2) + np.float32(offset)

    yield route_case("tiny", 7200, logits(7200, 9, 16), bias(7201, 16), 4, (1, 1), 2.827, "tiny-k2")
    yield route_case(
        "kimi", 7210, logits(7210, 6, 384), bias(7211, 384), 8, (1, 1), 2.827, "Kimi K2"
    )
    yield route_case(
        "deepseek",
        7220,
        logits(7220, 6, 256),
        bias(7221, 256),
        8,
        (8, 4),
        2.5,
        "DeepSeek-V3: the 4 best of 8 groups",
    )
    yield route_case(
        "negative_choice",
        7230,
        logits(7230, 8, 32),
        bias(7231, 32, -2.0),
        6,
        (4, 1),
        2.5,
        "sigmoid + bias below 0: a masked group is -inf, not 0",
    )
    yield route_case(
        "no_bias", 7240, logits(7240, 3, 24), None, 3, (1, 1), 1.0, "raw sigmoids", normalize=False
    )
    ties = np.rint(logits(7250, 5, 32))
    yield route_case(
        "ties",
        7250,
        ties,
        np.zeros(32, np.float32),
        8,
        (4, 2),
        1.0,
        "whole-numbered logits: ties to the lower id, among groups too",
    )


def expert_cases():
    shapes = {"gate": (8, 32, 64), "up": (8, 32, 64), "down": (8, 64, 32)}
    weights = {name: Seeded(7300 + i, shape, 0.1) for i, (name, shape) in enumerate(shapes.items())}
    x = seeded.seeded_f32(7310, (7, 64), 1.0)
    ids, slots = moe_route(seeded.seeded_f32(7311, (7, 8), 1.5), None, 3)
    slots, ids[6] = slots.astype(np.float32), (7, 0, 3)
    y = seeded.seeded_f32(7312, (7, 64), 1.0)
    out = moe_experts(
        x.astype(np.float64),
        ids,
        slots.astype(np.float64),
        *(values(w).astype(np.float64) for w in weights.values()),
    )
    yield Case(
        "moe_experts",
        "dense",
        7300,
        {"x": x, "ids": ids, "weights": slots, "y": y, **weights},
        {"y_after": (y + out).astype(np.float32)},
        "bf16 experts; the sum is added to y",
    )


def cases():
    yield from route_cases()
    yield from expert_cases()
