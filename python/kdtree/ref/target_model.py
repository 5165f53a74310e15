"""The target model, DeepSeek-V3 / Kimi K2 (arXiv 2412.19437; Hugging Face modeling_deepseek_v3), in
plain numpy with absorbed MLA: one function for prefill, decoding and tree verification.
"""

import numpy as np

from . import safetensors
from .mla_absorb import absorb_query, expand_value, mla_absorb
from .moe import mlp, moe_experts, moe_route
from .norm import rms_norm
from .quantized import fp8_dequantize, int4_dequantize
from .rope import amplitude, inv_freq, rope, softmax_scale
from .verify_attention import masked_attention

LATENT_EPS = (
    1e-6  # of the two latent norms: modeling_deepseek_v3 does not pass rms_norm_eps to them
)


class Target:
    """Weights by their checkpoint names without prefix, dequantized to `dtype`."""

    def __init__(self, directory, dtype=np.float64):
        config, tensors = safetensors.read_checkpoint(directory)
        self.config = config.get("text_config", config)
        self.dtype = dtype
        prefix = "language_model." if any(n.startswith("language_model.") for n in tensors) else ""
        self._tensors = {
            name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)
        }
        self._cache = {}
        self.scaling = self.config.get("rope_scaling")
        self.frequencies = inv_freq(
            self.config["qk_rope_head_dim"], self.config["rope_theta"], self.scaling
        )

    def __getitem__(self, name):
        """The weight `name`, without ".weight"."""
        if name not in self._cache:
            self._cache[name] = self._dequantize(name).astype(self.dtype)
        return self._cache[name]

    def _dequantize(self, name):
        tensors = self._tensors
        if f"{name}.weight_packed" in tensors:
            packed, scale = tensors[f"{name}.weight_packed"], tensors[f"{name}.weight_scale"]
            return int4_dequantize(packed, scale, 8 * packed.shape[1] // scale.shape[1])
        if f"{name}.weight_scale_inv" in tensors:
            return fp8_dequantize(tensors[f"{name}.weight"], tensors[f"{name}.weight_scale_inv"])
        return tensors[name] if name in tensors else tensors[f"{name}.weight"]

    def has(self, name):
        return any(
            f"{name}{suffix}" in self._tensors for suffix in ("", ".weight", ".weight_packed")
        )


def attention_scale(target):
    c = target.config
    return softmax_scale(c["qk_nope_head_dim"] + c["qk_rope_head_dim"], target.scaling)


def attention(target, layer, x, positions, past, visible, captured=None):
    """x [M, hidden] (normed), past [S, 576], visible [M, S + M] -> (out [M, hidden], new KV
    [M, 576]). A dict `captured` receives the absorbed queries [M, H, 576]."""
    c, at = target.config, f"model.layers.{layer}.self_attn."
    heads, nope, rotary = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
    latent, factor = c["kv_lora_rank"], amplitude(target.scaling)
    if c["q_lora_rank"] is None:
        q = x @ target[at + "q_proj"].T
    else:
        q = rms_norm(x @ target[at + "q_a_proj"].T, target[at + "q_a_layernorm"], LATENT_EPS)
        q = q @ target[at + "q_b_proj"].T
    q = q.reshape(len(x), heads, nope + rotary)
    w_uk, w_uv = mla_absorb(target[at + "kv_b_proj"], heads, nope, c["v_head_dim"])
    q_pe = rope(q[..., nope:], positions, target.frequencies, factor)
    query = np.concatenate([absorb_query(q[..., :nope], w_uk), q_pe], axis=-1)
    kv = x @ target[at + "kv_a_proj_with_mqa"].T
    k_pe = rope(kv[:, None, latent:], positions, target.frequencies, factor)[:, 0]
    c_kv = rms_norm(kv[:, :latent], target[at + "kv_a_layernorm"], LATENT_EPS)
    new = np.concatenate([c_kv, k_pe], axis=-1)
    out, _ = masked_attention(
        query, np.concatenate([past, new]), visible, attention_scale(target), latent
    )
    if captured is not None:
        captured[layer] = query
    value = expand_value(out.astype(target.dtype), w_uv).reshape(len(x), -1)
    return value @ target[at + "o_proj"].T, new


def feed_forward(target, layer, x):
    """x [M, hidden] (normed) -> [M, hidden]: a dense MLP or the experts plus the shared expert."""
    c, at = target.config, f"model.layers.{layer}.mlp."

    def matrices(name):
        return (target[f"{at}{name}{matrix}_proj"] for matrix in ("gate", "up", "down"))

    if not target.has(at + "gate"):
        return mlp(x, *matrices(""))
    bias = at + "gate.e_score_correction_bias"
    ids, weights = moe_route(
        x @ target[at + "gate"].T,
        target[bias] if target.has(bias) else None,
        c["num_experts_per_tok"],
        c["n_group"],
        c["topk_group"],
        c["routed_scaling_factor"],
        c["norm_topk_prob"],
    )
    experts = {e: tuple(matrices(f"experts.{e}.")) for e in np.unique(ids)}
    gate, up, down = ({e: parts[i] for e, parts in experts.items()} for i in range(3))
    out = moe_experts(x, ids, weights.astype(target.dtype), gate, up, down)
    return out + mlp(x, *matrices("shared_experts.")) if c["n_shared_experts"] else out


def forward(target, tokens, positions, cache, visible=None, captured=None):
    """tokens, positions [M]; cache [layers, S, 576]; visible [M, S + M] bool, default: all of the
    cache and a causal chain.

    Returns (logits [M, V], new KV [layers, M, 576], hidden [layers, M, hidden] = the residual
    stream after each layer, which is what the drafter reads)."""
    c = target.config
    past = cache.shape[1]
    if visible is None:
        visible = np.tri(len(tokens), past + len(tokens), past, dtype=bool)
    h = target["model.embed_tokens"][np.asarray(tokens)]
    new_kv, hidden = [], []
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        x = rms_norm(h, target[at + "input_layernorm"], c["rms_norm_eps"])
        out, new = attention(target, layer, x, positions, cache[layer], visible, captured)
        h = h + out
        x = rms_norm(h, target[at + "post_attention_layernorm"], c["rms_norm_eps"])
        h = h + feed_forward(target, layer, x)
        new_kv.append(new)
        hidden.append(h)
    return logits(target, h), np.stack(new_kv), np.stack(hidden)


def logits(target, h):
    """h [M, hidden] -> [M, V]: final norm and head; the drafter uses the head with its own norm."""
    normed = rms_norm(h, target["model.norm"], target.config["rms_norm_eps"])
    return normed @ target["lm_head"].T


def empty_cache(target):
    c = target.config
    width = c["kv_lora_rank"] + c["qk_rope_head_dim"]
    return np.zeros((c["num_hidden_layers"], 0, width), target.dtype)
