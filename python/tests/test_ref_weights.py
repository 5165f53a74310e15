"""References of weights and elementwise math against closed forms and published numbers."""

import math

import numpy as np
import pytest

from kdtree import kdtr
from kdtree.ref import moe, numeric, quantized, rope
from kdtree.ref.mla_absorb import absorb_query, expand_value, mla_absorb
from kdtree.ref.norm import rms_norm, silu_mul

YARN64 = {
    "type": "yarn",
    "factor": 64.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


def test_int4_nibbles_and_round_trip():
    q = np.array([[-8, -7, -1, 0, 1, 2, 6, 7]])
    assert quantized.int4_pack(q).view(np.uint32)[0, 0] == 0xFEA98710
    rng = np.random.default_rng(0)
    q = rng.integers(-8, 8, (5, 64))
    assert (quantized.int4_unpack(quantized.int4_pack(q)) == q).all()
    packed, scale = quantized.int4_quantize(rng.normal(size=(6, 96)).astype(np.float32))
    assert packed.shape == (6, 12) and packed.dtype == np.int32 and scale.shape == (6, 3)
    weight = quantized.int4_dequantize(packed, scale)
    for row, column in ((0, 0), (3, 33), (5, 95)):
        word = int(packed.view(np.uint32)[row, column // 8])
        nibble = (word >> (4 * (column % 8))) & 15
        assert weight[row, column] == np.float32(nibble - 8) * scale[row, column // 32]
    again, _ = quantized.int4_quantize(weight)
    assert (again == packed).all()


def test_fp8_values_and_partial_blocks():
    known = {
        0x00: 0.0,
        0x01: 2.0**-9,
        0x07: 7 * 2.0**-9,
        0x08: 2.0**-6,
        0x38: 1.0,
        0x3C: 1.5,
        0x7E: 448.0,
        0xB8: -1.0,
        0xFE: -448.0,
    }
    assert all(numeric.f32_from_f8e4m3([code])[0] == value for code, value in known.items())
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(
        numeric.f32_from_f8e4m3(codes), kdtr.to_f32(kdtr.Tensor("f8e4m3", codes))
    )
    codes = np.full((130, 257), 0x3C, np.uint8)
    scale = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    weight = quantized.fp8_dequantize(codes, scale)
    assert weight[0, 0] == 1.5 and weight[127, 128] == 3 and weight[128, 256] == 9
    assert weight.shape == (130, 257)


def test_bf16_agrees_with_the_container():
    bits = np.arange(1 << 16, dtype=np.uint16)
    np.testing.assert_array_equal(
        numeric.f32_from_bf16(bits), kdtr.to_f32(kdtr.Tensor("bf16", bits))
    )


def test_yarn_numbers_of_kimi():
    """Values derived from Kimi K2.6's config: ramp from 8 to 20, mscale 1.41589, scale 0.14468."""
    plain, yarn = rope.inv_freq(64, 50000.0), rope.inv_freq(64, 50000.0, YARN64)
    ratio = yarn / plain
    assert (ratio[:9] == 1).all() and ratio[9] < 1
    np.testing.assert_allclose(ratio[20:], 1 / 64, rtol=1e-6)
    assert ratio[19] > 1 / 64 * 1.01
    np.testing.assert_allclose(ratio[14], 0.5 + 0.5 / 64, rtol=1e-6)
    assert plain[0] == 1 and plain[16] == pytest.approx(50000**-0.5)
    assert rope.yarn_mscale(64, 1) == pytest.approx(1.4158883083, abs=1e-10)
    assert rope.softmax_scale(192, YARN64) == pytest.approx(0.1446796258, abs=1e-10)
    assert rope.softmax_scale(192) == 192**-0.5
    k2 = {**YARN64, "factor": 32.0, "beta_fast": 1.0}
    assert rope.softmax_scale(192, k2) == pytest.approx(0.1308608, abs=1e-7)
    ratio = rope.inv_freq(64, 50000.0, k2) / plain
    assert (ratio[:20] == 1).all()
    np.testing.assert_allclose(ratio[20:], 1 / 32, rtol=1e-6)


def test_yarn_amplitude_conventions():
    assert rope.amplitude(None) == 1 and rope.amplitude(YARN64) == 1
    no_all_dim = {key: value for key, value in YARN64.items() if not key.startswith("mscale")}
    assert rope.amplitude(no_all_dim) == pytest.approx(1.4158883083, abs=1e-10)
    assert rope.amplitude({**YARN64, "attention_factor": 1.25}) == 1.25


@pytest.mark.parametrize("interleaved", [True, False])
def test_rope_is_a_complex_rotation_and_relative(interleaved):
    rng = np.random.default_rng(1)
    x, freq = rng.normal(size=(3, 2, 8)), rope.inv_freq(8, 100.0)
    positions = np.array([0, 5, 1000])
    out = rope.rope(x, positions, freq, 1.0, interleaved)
    pairs = (
        (lambda y: y[..., 0::2] + 1j * y[..., 1::2])
        if interleaved
        else (lambda y: y[..., :4] + 1j * y[..., 4:])
    )
    angle = positions[:, None, None] * freq.astype(np.float64)
    np.testing.assert_allclose(pairs(out), pairs(x) * np.exp(1j * angle), atol=1e-4)
    assert (out[0] == x[0]).all()
    np.testing.assert_allclose(
        rope.rope(x, positions, freq, 1.5, interleaved), 1.5 * out, rtol=1e-12
    )
    q, k = x[:1], x[1:2]
    dots = [
        (
            rope.rope(q, [p + 9], freq, 1, interleaved) * rope.rope(k, [p], freq, 1, interleaved)
        ).sum()
        for p in (0, 31)
    ]
    assert dots[0] == pytest.approx(dots[1], abs=1e-5)


def test_rope_rounds_the_angle_to_fp32():
    """At 262k the fp32 angle is off by more than a float64 one: both products are told apart."""
    freq = rope.inv_freq(64, 50000.0, YARN64)
    out = rope.rope(np.array([[[1.0, 0.0]]]), [262143], freq[3:4])[0, 0]
    angle32 = float(np.float32(262143) * freq[3])
    assert math.atan2(out[1], out[0]) == pytest.approx(
        math.remainder(angle32, 2 * math.pi), abs=1e-9
    )
    assert abs(angle32 - 262143 * float(freq[3])) > 1e-4


def test_norm_and_activation():
    x = np.array([[3.0, 4.0]])
    np.testing.assert_allclose(
        rms_norm(x, np.array([1.0, 2.0]), 0.5), [[3 / math.sqrt(13), 8 / math.sqrt(13)]]
    )
    assert silu_mul(np.array([0.0, 1.0, -1e4]), np.array([5.0, 2.0, 1.0])).tolist() == [
        0,
        pytest.approx(2 / (1 + math.exp(-1))),
        0,
    ]


def test_absorption_is_associativity():
    rng = np.random.default_rng(2)
    kv_b = rng.normal(size=(3 * (4 + 5), 16))
    w_uk, w_uv = mla_absorb(kv_b, 3, 4, 5)
    q, c = rng.normal(size=(2, 3, 4)), rng.normal(size=16)
    full = (kv_b @ c).reshape(3, 9)
    np.testing.assert_allclose(absorb_query(q, w_uk) @ c, np.einsum("mhd,hd->mh", q, full[:, :4]))
    np.testing.assert_allclose(expand_value(np.broadcast_to(c, (2, 3, 16)), w_uv)[1], full[:, 4:])


def route_by_hand(logits, bias, n_selected, n_group, topk_group):
    """One row, written as loops over Python numbers."""
    scores = [1 / (1 + math.exp(-x)) for x in logits]
    choice = [s + b for s, b in zip(scores, bias)]
    size = len(logits) // n_group
    group_score = [sum(sorted(choice[g * size : (g + 1) * size])[-2:]) for g in range(n_group)]
    best = sorted(range(n_group), key=lambda g: (-group_score[g], g))[:topk_group]
    allowed = [e for e in range(len(logits)) if e // size in best]
    chosen = sorted(allowed, key=lambda e: (-choice[e], e))[:n_selected]
    total = sum(scores[e] for e in chosen) + 1e-20
    return chosen, [scores[e] / total * 2.5 for e in chosen]


@pytest.mark.parametrize("n_group, topk_group, offset", [(1, 1, 0), (8, 4, -1), (4, 1, -5)])
def test_routing(n_group, topk_group, offset):
    rng = np.random.default_rng(n_group)
    logits = np.round(rng.normal(size=(20, 32)) * 4) / 4  # ties
    bias = np.round(rng.normal(size=32)) + offset  # some choices, or all, negative
    ids, weights = moe.moe_route(logits, bias, 4, n_group, topk_group, 2.5)
    for row in range(20):
        chosen, expected = route_by_hand(logits[row], bias, 4, n_group, topk_group)
        assert ids[row].tolist() == chosen
        np.testing.assert_allclose(weights[row], expected, rtol=1e-12)
    _, raw = moe.moe_route(logits, None, 4, normalize=False)
    assert raw[0, 0] == pytest.approx(1 / (1 + math.exp(-logits[0].max())))


def test_experts_sum_over_slots():
    rng = np.random.default_rng(3)
    x, (gate, up) = rng.normal(size=(5, 8)), rng.normal(size=(2, 4, 6, 8))
    down = rng.normal(size=(4, 8, 6))
    ids, weights = np.array([[0, 2], [2, 1], [3, 0], [1, 3], [2, 0]]), rng.random((5, 2))
    out = moe.moe_experts(x, ids, weights, gate, up, down)
    for m in range(5):
        expected = 0
        for slot, e in enumerate(ids[m]):
            g, u = gate[e] @ x[m], up[e] @ x[m]
            expected = expected + weights[m, slot] * (down[e] @ (g / (1 + np.exp(-g)) * u))
        np.testing.assert_allclose(out[m], expected, rtol=1e-12)
