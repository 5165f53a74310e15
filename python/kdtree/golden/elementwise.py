"""Cases of rms_norm, silu_mul and rope, and of the YaRN numbers behind rope."""

import numpy as np

from kdtree.golden import seeded
from kdtree.golden.case import Case, i32
from kdtree.ref import rope
from kdtree.ref.norm import rms_norm, silu_mul

TINY = {
    "factor": 8.0,
    "original_max_position_embeddings": 512,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
K26 = {**TINY, "factor": 64.0, "original_max_position_embeddings": 4096}


def norm_cases():
    for name, seed, shape, scale in (
        ("hidden", 7400, (5, 1, 256), 1.0),
        ("heads", 7410, (3, 8, 64), 2.0),
        ("small", 7420, (2, 1, 512), 1e-4),
    ):
        x, weight = (
            seeded.seeded_f32(seed, shape, scale),
            seeded.seeded_f32(seed + 1, shape[-1:], 1.0),
        )
        eps = np.float32(1e-5)
        y = rms_norm(x.astype(np.float64), weight.astype(np.float64), np.float64(eps))
        yield Case(
            "rms_norm",
            name,
            seed,
            {"x": x, "weight": weight, "eps": eps},
            {"y": y.astype(np.float32)},
        )
    gate, up = seeded.seeded_f32(7430, (1000,), 4.0), seeded.seeded_f32(7431, (1000,), 1.0)
    gate[:4] = (-200, -90, 0, 200)
    yield Case(
        "silu_mul",
        "wide",
        7430,
        {"gate": gate, "up": up},
        {"y": silu_mul(gate.astype(np.float64), up.astype(np.float64)).astype(np.float32)},
    )


def rope_cases():
    positions = np.array([0, 1, 63, 1000, 70000, 262143], np.int32)
    for name, seed, dim, scaling, amplitude, interleaved in (
        ("deepseek", 7500, 64, K26, 1.0, True),
        ("qwen", 7510, 128, None, 1.0, False),
        ("qwen_amplitude", 7520, 128, K26, 1.4158883, False),
    ):
        x, frequencies = (
            seeded.seeded_f32(seed, (6, 2, dim), 1.0),
            rope.inv_freq(dim, 50000.0, scaling),
        )
        amplitude = np.float32(amplitude)
        y = rope.rope(
            x.astype(np.float64), positions, frequencies, np.float64(amplitude), interleaved
        )
        inputs = {
            "x": x,
            "positions": positions,
            "inv_freq": frequencies,
            "amplitude": amplitude,
            "interleaved": np.bool_(interleaved),
        }
        yield Case("rope", name, seed, inputs, {"y": y.astype(np.float32)})


def yarn_cases():
    """Config values -> inv_freq [dim / 2], amplitude of cos and sin, scale of the scores."""
    for name, dim, qk_dim, scaling in (
        ("tiny", 64, 192, TINY),
        ("kimi_k26", 64, 192, K26),
        ("plain", 64, 192, None),
        ("kimi_k2", 64, 192, {**K26, "factor": 32.0, "beta_fast": 1.0}),
        ("drafter", 128, 128, {**K26, "mscale": 0.0, "mscale_all_dim": 0.0}),
    ):
        inputs = {"dim": i32(dim), "qk_dim": i32(qk_dim), "rope_theta": np.float64(50000)}
        inputs |= {key: np.float64(value) for key, value in (scaling or {}).items()}
        outputs = {
            "inv_freq": rope.inv_freq(dim, 50000.0, scaling),
            "amplitude": np.float64(rope.amplitude(scaling)),
            "softmax_scale": np.float64(rope.softmax_scale(qk_dim, scaling)),
        }
        yield Case("yarn", name, 0, inputs, outputs)


def cases():
    yield from norm_cases()
    yield from rope_cases()
    yield from yarn_cases()
