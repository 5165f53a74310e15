"""The DeepSeek-V3-shaped golden checkpoints against a second, independent computation: the model
written out in numpy float64, from the bytes of the files to the logits."""
import json
import pathlib
import struct

import numpy as np
import pytest

from kdtree import kdtr

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/deepseek_v3_tiny"
CHECKPOINTS = {"fp8_yarn": "fp8_yarn", "plain_bf16": "plain", "plain_f16": "plain",
               "plain_f32": "plain"}
LATENT_EPS = 1e-6  # of the two latent norms, whatever rms_norm_eps says
# Float32 logits after three layers against float64 ones.
MAX_RELATIVE_ERROR = 1e-5


def read_shard(path):
    """safetensors -> {name: (dtype, array or kdtr.Tensor)}."""
    data = path.read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + header_bytes])
    header.pop("__metadata__", None)
    out = {}
    for name, entry in header.items():
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1"}[entry["dtype"]]
        array = np.frombuffer(data[begin:end], kind).reshape(entry["shape"])
        coded = {"BF16": "bf16", "F8_E4M3": "f8e4m3"}.get(entry["dtype"])
        out[name] = kdtr.Tensor(coded, array) if coded else array
    return out


def read_checkpoint(directory):
    """-> (config, {name: float64 array}), FP8 weights times their block scales."""
    stored = {}
    for path in sorted(directory.glob("*.safetensors")):
        stored |= read_shard(path)
    weights = {name: kdtr.to_f32(t).astype(np.float64) for name, t in stored.items()}
    for name in [name for name in weights if name.endswith("_scale_inv")]:
        weight = weights[name.removesuffix("_scale_inv")]
        rows, columns = (np.arange(n) // 128 for n in weight.shape)
        weight *= weights.pop(name)[rows[:, None], columns]
    return json.loads((directory / "config.json").read_text()), weights


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def rope_constants(config):
    """-> (radians per position [rope / 2], amplitude of cos and sin, softmax scale)."""
    dim, base = config["qk_rope_head_dim"], config["rope_theta"]
    pair = np.arange(dim // 2)
    plain = base ** (-2 * pair / dim)
    scale = (config["qk_nope_head_dim"] + dim) ** -0.5
    yarn = config["rope_scaling"]
    if yarn is None:
        return plain, 1.0, scale

    def turns_at(rotations):
        context = yarn["original_max_position_embeddings"]
        return dim * np.log(context / (rotations * 2 * np.pi)) / (2 * np.log(base))

    low = max(np.floor(turns_at(yarn["beta_fast"])), 0)
    high = min(np.ceil(turns_at(yarn["beta_slow"])), dim - 1)
    ramp = np.clip((pair - low) / (high - low), 0, 1)
    mscale, mscale_all = (
        0.1 * yarn[key] * np.log(yarn["factor"]) + 1 for key in ("mscale", "mscale_all_dim")
    )
    frequency = plain / yarn["factor"] * ramp + plain * (1 - ramp)
    return frequency, mscale / mscale_all, scale * mscale_all**2


def rotate(x, angles, amplitude):
    """Interleaved pairs. x: [n, ..., rope]; angles: [n, rope / 2]."""
    angles = angles.reshape(len(x), *[1] * (x.ndim - 2), -1)
    cos, sin = np.cos(angles) * amplitude, np.sin(angles) * amplitude
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 1::2] * cos + x[..., 0::2] * sin
    return out


def attention(config, w, x):
    """w: weight by short name; x: [n, hidden] -> [n, hidden]."""
    n, heads = len(x), config["num_attention_heads"]
    nope, v_dim = config["qk_nope_head_dim"], config["v_head_dim"]
    frequency, amplitude, scale = rope_constants(config)
    angles = np.arange(n)[:, None] * frequency
    if config["q_lora_rank"] is None:
        q = x @ w("q_proj").T
    else:
        q = rms_norm(x @ w("q_a_proj").T, w("q_a_layernorm"), LATENT_EPS) @ w("q_b_proj").T
    q = q.reshape(n, heads, -1)
    latent, k_pe = np.split(x @ w("kv_a_proj_with_mqa").T, [config["kv_lora_rank"]], axis=-1)
    latent = rms_norm(latent, w("kv_a_layernorm"), LATENT_EPS)
    kv = (latent @ w("kv_b_proj").T).reshape(n, heads, nope + v_dim)
    scores = np.einsum("ihd,jhd->hij", q[..., :nope], kv[..., :nope])
    scores += np.einsum("ihd,jd->hij", rotate(q[..., nope:], angles, amplitude),
                        rotate(k_pe, angles, amplitude))
    scores = np.where(np.tri(n, dtype=bool), scores * scale, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", p, kv[..., nope:]).reshape(n, -1) @ w("o_proj").T


def mlp(w, x):
    return (silu(x @ w("gate_proj").T) * (x @ w("up_proj").T)) @ w("down_proj").T


def moe(config, w, x):
    """Token by token, as the routing rule reads."""
    scores = 1 / (1 + np.exp(-x @ w("gate").T))
    choice = scores + w("gate.e_score_correction_bias")
    groups = config["n_group"]
    out = mlp(lambda name: w("shared_experts." + name), x)
    for token in range(len(x)):
        best_two = np.sort(choice[token].reshape(groups, -1))[:, -2:].sum(-1)
        allowed = np.argsort(-best_two)[: config["topk_group"]]
        group = np.arange(config["n_routed_experts"]) // (config["n_routed_experts"] // groups)
        masked = np.where(np.isin(group, allowed), choice[token], -np.inf)
        chosen = np.argsort(-masked)[: config["num_experts_per_tok"]]
        weights = scores[token, chosen] / scores[token, chosen].sum()
        for expert, weight in zip(chosen, weights * config["routed_scaling_factor"], strict=True):
            out[token] += weight * mlp(lambda name: w(f"experts.{expert}.{name}"), x[token])
    return out


def forward(config, weights, ids):
    """-> (logits [n, vocab], residual stream after every layer [layers, n, hidden])."""
    h = weights["model.embed_tokens.weight"][ids]
    eps, hidden = config["rms_norm_eps"], []
    for layer in range(config["num_hidden_layers"]):
        def w(name, prefix=f"model.layers.{layer}."):
            full = prefix + name
            return weights[full if full in weights else full + ".weight"]

        x = rms_norm(h, w("input_layernorm"), eps)
        h = h + attention(config, lambda name: w("self_attn." + name), x)
        x = rms_norm(h, w("post_attention_layernorm"), eps)
        if layer < config["first_k_dense_replace"]:
            h = h + mlp(lambda name: w("mlp." + name), x)
        else:
            h = h + moe(config, lambda name: w("mlp." + name), x)
        hidden.append(h)
    logits = rms_norm(h, weights["model.norm.weight"], eps) @ weights["lm_head.weight"].T
    return logits, np.stack(hidden)


def relative_error(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_logits_equal_float64_forward(name):
    config, weights = read_checkpoint(GOLDEN / name)
    expected, _ = kdtr.read(GOLDEN / f"{CHECKPOINTS[name]}.kdtr")
    for i in range(3):
        logits, hidden = forward(config, weights, expected[f"prompt{i}.ids"])
        for row, want in zip(logits, expected[f"prompt{i}.logits"], strict=True):
            assert relative_error(row, want) < MAX_RELATIVE_ERROR, f"prompt {i}"
        if i == 1:
            for layer, want in zip(hidden, expected["prompt1.hidden"], strict=True):
                assert relative_error(layer, want) < MAX_RELATIVE_ERROR


def test_shards_hold_what_the_index_says():
    for name in ("fp8_yarn", "plain_bf16"):
        directory = GOLDEN / name
        index = json.loads((directory / "model.safetensors.index.json").read_text())
        for path in directory.glob("*.safetensors"):
            listed = {t for t, file in index["weight_map"].items() if file == path.name}
            assert set(read_shard(path)) == listed


def test_fp8_checkpoint_has_an_mtp_layer_and_partial_blocks():
    tensors = {}
    for path in (GOLDEN / "fp8_yarn").glob("*.safetensors"):
        tensors |= read_shard(path)
    assert any(name.startswith("model.layers.3.") for name in tensors)
    kv_a = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"
    assert tensors[kv_a].dtype == "f8e4m3"
    assert tensors[kv_a].codes.shape == (576, 160)
    assert tensors[kv_a + "_scale_inv"].shape == (5, 2)
