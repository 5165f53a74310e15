"""The DFlash block-diffusion drafter: a Qwen3-style block that denoises [root, MASK, MASK, ...]
over key-value pairs projected from the target's hidden states.

Source: z-lab's DFlash (dflash/model.py of its reference code; formats of Kimi-K2.5/K2.6-DFlash) and
Hugging Face modeling_qwen3.
"""

import numpy as np

from . import safetensors
from .moe import mlp
from .norm import rms_norm
from .rope import amplitude, inv_freq, rope


class Drafter:
    """Weights by checkpoint name, in `dtype`, and the two disputed conventions.

    amplitude: factor on cos and sin. Without an explicit attention_factor, rope type "yarn" has
    0.1 ln(factor) + 1 and "deepseek_yarn" the ratio of its mscales.
    causal_sliding: sliding layers are causal within the block; full layers never are.
    """

    def __init__(self, config, tensors, dtype=np.float64, causal_sliding=True):
        self.config, self.dtype, self.causal_sliding = config, dtype, causal_sliding
        self._tensors = {name: value.astype(dtype) for name, value in tensors.items()}
        scaling = config.get("rope_scaling") or config.get("rope_parameters")
        self.scaling = scaling
        kind = (scaling or {}).get("rope_type", (scaling or {}).get("type", "default"))
        theta = config.get("rope_theta") or scaling["rope_theta"]
        yarn = scaling if kind in ("yarn", "deepseek_yarn") else None
        self.frequencies = inv_freq(config["head_dim"], theta, yarn)
        if kind == "yarn":  # as the engines that serve these checkpoints do: no mscale ratio
            yarn = {key: value for key, value in yarn.items() if not key.startswith("mscale")}
        self.amplitude = amplitude(yarn)

    def __getitem__(self, name):
        return self._tensors[f"{name}.weight"]


def load(directory, dtype=np.float64, **options):
    return Drafter(*safetensors.read_checkpoint(directory), dtype, **options)


def features(drafter, hidden):
    """hidden [layers, M, H]: the target's residual stream after each layer -> [M, n * H]: those of
    target_layer_ids side by side."""
    ids = drafter.config["dflash_config"]["target_layer_ids"]
    return np.concatenate([hidden[i] for i in ids], axis=-1).astype(drafter.dtype)


def _keys_values(drafter, layer, x, positions):
    """x [M, hidden] -> (k, v) [M, kv_heads, head_dim], k normed per head and rotated."""
    c, at = drafter.config, f"layers.{layer}.self_attn."
    shape = (len(x), c["num_key_value_heads"], c["head_dim"])
    k = rms_norm(
        (x @ drafter[at + "k_proj"].T).reshape(shape), drafter[at + "k_norm"], c["rms_norm_eps"]
    )
    k = rope(k, positions, drafter.frequencies, drafter.amplitude, interleaved=False)
    return k, (x @ drafter[at + "v_proj"].T).reshape(shape)


def context_kv(drafter, feature, positions):
    """feature [M, n * H] of committed tokens -> (k, v), each [layers, M, kv_heads, head_dim].

    Depends on the tokens alone, not on any block, so it is computed once per committed token."""
    x = rms_norm(feature @ drafter["fc"].T, drafter["hidden_norm"], drafter.config["rms_norm_eps"])
    layers = range(drafter.config["num_hidden_layers"])
    k, v = zip(*(_keys_values(drafter, layer, x, positions) for layer in layers))
    return np.stack(k), np.stack(v)


def draft_attention(q, k, v, ctx_k, ctx_v, scale, sliding_window=0, causal=False):
    """q [N, heads, dim]; k, v [N, kv_heads, dim] of the block; ctx_k, ctx_v [P, kv_heads, dim] of
    positions 0 .. P - 1; row i stands at P + i -> [N, heads, dim].

    sliding_window w > 0: a query at p sees keys at positions > p - w."""
    n, past = len(q), len(ctx_k)
    group = q.shape[1] // k.shape[1]
    keys = np.repeat(np.concatenate([ctx_k, k]), group, axis=1)
    values = np.repeat(np.concatenate([ctx_v, v]), group, axis=1)
    query_at, key_at = past + np.arange(n)[:, None], np.arange(past + n)[None, :]
    visible = np.ones((n, past + n), bool)
    if sliding_window > 0:
        visible &= key_at > query_at - sliding_window
    if causal:
        visible &= key_at <= query_at
    scores = scale * np.einsum("nhd,shd->hns", q, keys)
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hns,shd->nhd", weights, values)


def forward(drafter, embedded, ctx_k, ctx_v):
    """embedded [N, hidden] = the target's embeddings of [root, MASK, ...]; ctx_* [layers, P, ...]
    -> [N, hidden] after the final norm, for the target's head. Row j drafts position P + j."""
    c = drafter.config
    n, past, heads, dim = len(embedded), ctx_k.shape[1], c["num_attention_heads"], c["head_dim"]
    positions, eps, h = past + np.arange(n), c["rms_norm_eps"], embedded.astype(drafter.dtype)
    for layer in range(c["num_hidden_layers"]):
        at = f"layers.{layer}."
        sliding = c.get("layer_types") and c["layer_types"][layer] == "sliding_attention"
        x = rms_norm(h, drafter[at + "input_layernorm"], eps)
        q = (x @ drafter[at + "self_attn.q_proj"].T).reshape(n, heads, dim)
        q = rope(
            rms_norm(q, drafter[at + "self_attn.q_norm"], eps),
            positions,
            drafter.frequencies,
            drafter.amplitude,
            interleaved=False,
        )
        k, v = _keys_values(drafter, layer, x, positions)
        out = draft_attention(
            q,
            k,
            v,
            ctx_k[layer],
            ctx_v[layer],
            dim**-0.5,
            c["sliding_window"] if sliding else 0,
            bool(sliding) and drafter.causal_sliding,
        )
        h = h + out.reshape(n, -1) @ drafter[at + "self_attn.o_proj"].T
        x = rms_norm(h, drafter[at + "post_attention_layernorm"], eps)
        h = h + mlp(x, *(drafter[f"{at}mlp.{m}_proj"] for m in ("gate", "up", "down")))
    return rms_norm(h, drafter["norm"], eps)
