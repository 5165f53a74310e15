"""The numpy models against what independent implementations say of the tiny pair, and against the
textbook form of their attention."""

import json
import pathlib

import numpy as np
import pytest

from kdtree import kdtr
from kdtree.ref import ddtree, dflash, quantized, safetensors, target_model
from kdtree.ref.rope import rope, softmax_scale
from kdtree.ref.sampler import Sampling
from kdtree.tolerance import relative_error, tolerance

ROOT = pathlib.Path(__file__).parents[2]
ORACLE = json.loads((ROOT / "tests/golden/tiny_k2_reference.json").read_text())
STOP = (4065, 4066)


@pytest.fixture(scope="module")
def target():
    return target_model.Target(ROOT / "models/tiny-k2")


@pytest.fixture(scope="module")
def drafter():
    return dflash.load(ROOT / "models/tiny-k2-dflash")


@pytest.mark.parametrize("case", ORACLE, ids=range(len(ORACLE)))
def test_logits_equal_transformers(target, case):
    prompt = case["prompt_ids"]
    logits, _, _ = target_model.forward(
        target, prompt, np.arange(len(prompt)), target_model.empty_cache(target)
    )
    top = np.argsort(-logits[-1])[:8]
    assert top.tolist() == case["last_top8_ids"]
    np.testing.assert_allclose(logits[-1][top], case["last_top8_logits"], atol=2e-5)
    assert np.logaddexp.reduce(logits[-1]) == pytest.approx(case["last_logsumexp"], abs=1e-4)


@pytest.mark.parametrize("name", ["fp8_yarn", "plain_bf16", "plain_f16", "plain_f32"])
def test_deepseek_shapes_equal_transformers(name):
    """Expert groups, FP8 blocks, flat names, shards, an MTP layer, no query latent, plain RoPE."""
    directory = ROOT / "tests/golden/deepseek_v3_tiny"
    model = target_model.Target(directory / name)
    expected, _ = kdtr.read(directory / f"{name.split('_')[0].replace('fp8', 'fp8_yarn')}.kdtr")
    for i in range(3):
        ids = expected[f"prompt{i}.ids"]
        logits, _, hidden = target_model.forward(
            model, ids, np.arange(len(ids)), target_model.empty_cache(model)
        )
        assert relative_error(logits, expected[f"prompt{i}.logits"]) < tolerance("f32", 1 << 20)
        if i == 1:
            assert relative_error(hidden, expected["prompt1.hidden"]) < tolerance("f32", 1 << 20)


@pytest.mark.parametrize(
    "mode, key, rounds", [("plain", None, 10), ("chain", "0", 5), (15, "15", 4), (64, "64", 3)]
)
def test_decoding_equals_the_oracle(target, drafter, mode, key, rounds):
    case = ORACLE[1]
    n = sum(case["acceptance"][key][:rounds]) if key else rounds
    run = ddtree.generate(target, drafter, case["prompt_ids"], n, mode, stop=STOP)
    assert run.tokens == case["greedy_ids"][:n]
    if key:
        assert run.acceptance == case["acceptance"][key][:rounds]
    if mode == 15:
        for tree, accepted, expected in zip(run.trees, run.accepted, case["trees_budget15"]):
            assert tree.token[1:].tolist() == expected["tree"]["node_token_ids"]
            assert tree.depth[1:].tolist() == expected["tree"]["node_depths"]
            assert tree.parent.tolist() == expected["tree"]["parents"]
            assert accepted == expected["accepted_indices"]


def test_sampled_tokens_do_not_depend_on_speculation(target, drafter):
    sampling = Sampling(0.8, top_k=40, top_p=0.95, min_p=0.01, seed=11)
    plain = ddtree.generate(target, drafter, ORACLE[0]["prompt_ids"], 8, "plain", sampling)
    for mode in ("chain", 7):
        run = ddtree.generate(target, drafter, ORACLE[0]["prompt_ids"], 8, mode, sampling)
        assert run.tokens == plain.tokens
    assert plain.tokens != ORACLE[0]["greedy_ids"][:8]


def test_truncation():
    assert ddtree.truncate([5, 6, 7, 8], 3, ()) == [5, 6, 7]
    assert ddtree.truncate([5, 6, 7, 8], 9, (6, 8)) == [5, 6]


def test_attention_equals_unabsorbed_hugging_face_form(target):
    """Keys and values per head from kv_b_proj, RoPE on de-interleaved halves, as in
    modeling_deepseek_v3."""
    rng = np.random.default_rng(0)
    n, at, eps = 7, "model.layers.2.self_attn.", 1e-6
    x, positions = rng.normal(size=(n, 256)), np.arange(n) + 100
    out, _ = target_model.attention(
        target, 2, x, positions, np.zeros((0, 576)), np.tri(n, dtype=bool)
    )

    def norm(y, weight):
        return y / np.sqrt((y**2).mean(-1, keepdims=True) + eps) * target[at + weight]

    def rotate(y):  # [n, H, 64]
        halves = np.concatenate([y[..., 0::2], y[..., 1::2]], axis=-1)
        return rope(halves, positions, target.frequencies, interleaved=False)

    q = norm(x @ target[at + "q_a_proj"].T, "q_a_layernorm") @ target[at + "q_b_proj"].T
    q = q.reshape(n, 4, 192)
    kv = x @ target[at + "kv_a_proj_with_mqa"].T
    expanded = norm(kv[:, :512], "kv_a_layernorm") @ target[at + "kv_b_proj"].T
    expanded = expanded.reshape(n, 4, 256)
    k_pe = np.broadcast_to(rotate(kv[:, None, 512:]), (n, 4, 64))
    keys = np.concatenate([expanded[..., :128], k_pe], axis=-1)
    queries = np.concatenate([q[..., :128], rotate(q[..., 128:])], axis=-1)
    scores = np.einsum("nhd,mhd->hnm", queries, keys) * softmax_scale(192, target.scaling)
    scores[:, ~np.tri(n, dtype=bool)] = -np.inf
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    value = np.einsum("hnm,mhd->nhd", weights, expanded[..., 128:]).reshape(n, -1)
    np.testing.assert_allclose(out, value @ target[at + "o_proj"].T, rtol=1e-9, atol=1e-12)


def test_chunked_prefill_is_whole_prefill(target):
    prompt = np.array(ORACLE[1]["prompt_ids"])
    whole, cache, hidden = target_model.forward(
        target, prompt, np.arange(len(prompt)), target_model.empty_cache(target)
    )
    _, first, _ = target_model.forward(
        target, prompt[:6], np.arange(6), target_model.empty_cache(target)
    )
    rest, second, tail = target_model.forward(target, prompt[6:], np.arange(6, len(prompt)), first)
    np.testing.assert_allclose(rest, whole[6:], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        np.concatenate([first, second], axis=1), cache, rtol=1e-9, atol=1e-10
    )
    np.testing.assert_allclose(tail, hidden[:, 6:], rtol=1e-9, atol=1e-9)


def test_packed_weights_of_the_checkpoint_round_trip():
    tensors = safetensors.read(ROOT / "models/tiny-k2/model.safetensors")
    packed = tensors["language_model.model.layers.1.mlp.experts.3.up_proj.weight_packed"]
    assert (quantized.int4_pack(quantized.int4_unpack(packed)) == packed).all()


@pytest.mark.parametrize(
    "window, causal", [(0, False), (4, False), (4, True), (0, True), (100, False)]
)
def test_draft_attention_by_hand(window, causal):
    rng = np.random.default_rng(5)
    past, n, heads, kv_heads = 6, 5, 4, 2
    q = rng.normal(size=(n, heads, 8))
    k, v = rng.normal(size=(2, past + n, kv_heads, 8))
    out = dflash.draft_attention(q, k[past:], v[past:], k[:past], v[:past], 0.4, window, causal)
    for i in range(n):
        at = past + i
        keys = [
            p
            for p in range(past + n)
            if (not window or p > at - window) and (not causal or p <= at)
        ]
        for h in range(heads):
            weights = np.exp(0.4 * k[keys, h // 2] @ q[i, h])
            np.testing.assert_allclose(out[i, h], weights @ v[keys, h // 2] / weights.sum())


def small_drafter(**config):
    rng = np.random.default_rng(6)
    base = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100.0,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 4,
        "dflash_config": {"target_layer_ids": [0, 1], "mask_token_id": 3},
    }
    shapes = {"fc": (16, 32), "hidden_norm": (16,), "norm": (16,)}
    for layer in range(2):
        at = f"layers.{layer}."
        shapes |= {
            at + "input_layernorm": (16,),
            at + "post_attention_layernorm": (16,),
            at + "self_attn.q_proj": (16, 16),
            at + "self_attn.k_proj": (8, 16),
            at + "self_attn.v_proj": (8, 16),
            at + "self_attn.o_proj": (16, 16),
            at + "self_attn.q_norm": (8,),
            at + "self_attn.k_norm": (8,),
            at + "mlp.gate_proj": (24, 16),
            at + "mlp.up_proj": (24, 16),
            at + "mlp.down_proj": (16, 24),
        }
    tensors = {f"{name}.weight": rng.normal(size=shape) * 0.5 for name, shape in shapes.items()}
    return base | config, tensors


def test_drafter_options_change_what_they_should():
    rng = np.random.default_rng(7)
    feature, embedded = rng.normal(size=(9, 32)), rng.normal(size=(5, 16))

    def run(causal=True, block=embedded, **config):
        drafter = dflash.Drafter(*small_drafter(**config), causal_sliding=causal)
        ctx = dflash.context_kv(drafter, feature, np.arange(9))
        return dflash.forward(drafter, block, *ctx), ctx

    base, (ctx_k, ctx_v) = run()
    assert not np.allclose(run(causal=False)[0], base)
    everything = run(layer_types=["full_attention"] * 2)[0]
    np.testing.assert_allclose(run(causal=False, sliding_window=1000)[0], everything, rtol=1e-12)
    # A causal stack: the first rows do not feel the last one.
    changed = embedded.copy()
    changed[-1] += 1
    both = {"layer_types": ["sliding_attention"] * 2}
    np.testing.assert_allclose(run(block=changed, **both)[0][:-1], run(**both)[0][:-1], rtol=1e-12)
    yarn = {
        "rope_type": "yarn",
        "factor": 64.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    amplitudes = [
        dflash.Drafter(*small_drafter(rope_scaling=scaling)).amplitude
        for scaling in (
            None,
            yarn,
            {**yarn, "rope_type": "deepseek_yarn"},
            {**yarn, "attention_factor": 2},
        )
    ]
    assert amplitudes == [1, pytest.approx(1.4158883083), 1, 2]
    # Context keys and values do not depend on how the tokens were grouped.
    drafter = dflash.Drafter(*small_drafter())
    late_k, late_v = dflash.context_kv(drafter, feature[4:], np.arange(4, 9))
    np.testing.assert_allclose(late_k, ctx_k[:, 4:], rtol=1e-12)
    np.testing.assert_allclose(late_v, ctx_v[:, 4:], rtol=1e-12)
