"""The target: transformers' DeepseekV3ForCausalLM in float32 from a Kimi-style checkpoint.

Two attention variants exist, and the benchmark takes the faster:
- "latent": transformers as it is. Since 5.x the cache holds the 512 + 64 latent of a token, and
  kv_b_proj expands the whole context again in every forward.
- "expanded": the cache holds the expanded per-head keys and values, as transformers 4.x did.
  Costs memory (4 x 320 instead of 576 floats a token and layer), saves the expansion.
"""

import json
import pathlib

import torch
from safetensors.torch import load_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

ATTENTION_VARIANTS = ("latent", "expanded")
# "batched_mm" copies the weights of every (row, expert) pair: never the fastest on a CPU.
EXPERT_VARIANTS = ("eager", "grouped_mm")
PREFIX = "language_model."


class ExpandedCacheAttention(deepseek.DeepseekV3Attention):
    """DeepseekV3Attention whose cache keeps expanded keys and values."""

    def forward(self, hidden_states, position_embeddings, attention_mask, cache=None, **kwargs):
        batch, rows = hidden_states.shape[:-1]
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
        q = q.view(batch, rows, -1, self.qk_head_dim).transpose(1, 2)
        q_nope, q_pe = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        latent, k_pe = self.kv_a_proj_with_mqa(hidden_states).split(
            [self.kv_lora_rank, self.qk_rope_head_dim], dim=-1
        )
        latent = self.kv_a_layernorm(latent)[:, None]
        q_pe, k_pe = deepseek.apply_rotary_pos_emb_interleave(
            q_pe, k_pe[:, None], *position_embeddings
        )
        keys, values = self.expand_kv(latent, k_pe)
        keys, values = cache.update(keys, values, self.layer_idx)
        out, _ = sdpa_attention_forward(
            self, torch.cat((q_nope, q_pe), dim=-1), keys, values, attention_mask,
            scaling=self.scaling,
        )
        return self.o_proj(out.reshape(batch, rows, -1)), None


def unpack_int4(packed, scale, shape):
    """INT4 pack-quantized weight -> float32.

    packed: int32 [out, in / 8], lowest nibble = lowest column, stored as q + 8.
    scale: [out, in / group]. shape: (out, in). Returns float32 [out, in].
    """
    out_dim, in_dim = shape
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    q = ((packed[..., None] >> shifts) & 0xF).reshape(out_dim, in_dim) - 8
    groups = scale.shape[1]
    return (q.view(out_dim, groups, -1) * scale.float()[..., None]).view(out_dim, in_dim)


def stack_experts(weights, config):
    """Replaces, in place, per-expert weights by the stacked tensors transformers 5.x wants."""
    for layer in range(config.first_k_dense_replace, config.num_hidden_layers):
        base = f"model.layers.{layer}.mlp.experts."

        def take(expert, proj):
            name = f"{base}{expert}.{proj}_proj."
            if name + "weight" in weights:
                return weights.pop(name + "weight")
            shape = weights.pop(name + "weight_shape").tolist()
            return unpack_int4(
                weights.pop(name + "weight_packed"), weights.pop(name + "weight_scale"), shape
            )

        gate_up, down = [], []
        for expert in range(config.n_routed_experts):
            gate_up.append(torch.cat((take(expert, "gate"), take(expert, "up"))))
            down.append(take(expert, "down"))
        weights[base + "gate_up_proj"] = torch.stack(gate_up)
        weights[base + "down_proj"] = torch.stack(down)


def text_config(raw):
    """config.json of a checkpoint (nested or flat) -> DeepseekV3Config for float32 inference."""
    fields = dict(raw.get("text_config", raw))
    for name in ("architectures", "model_type", "quantization_config", "torch_dtype", "dtype"):
        fields.pop(name, None)
    rope = dict(fields.pop("rope_scaling", None) or {"type": "default"})
    rope["rope_type"] = rope.pop("type", rope.get("rope_type", "default"))
    rope["rope_theta"] = fields.pop("rope_theta")
    return DeepseekV3Config(rope_parameters=rope, attn_implementation="sdpa", **fields)


class Target:
    """The target model with its KV cache and the features the drafter reads.

    forward() returns logits [rows, vocab] and, when feature_layers is not empty, the features of
    the rows: [rows, layers * hidden], the residual stream after each of feature_layers.
    """

    def __init__(self, directory, feature_layers=(), attention="latent", experts="eager"):
        directory = pathlib.Path(directory)
        config = text_config(json.loads((directory / "config.json").read_text()))
        weights = {
            name.removeprefix(PREFIX): tensor
            for name, tensor in load_file(directory / "model.safetensors").items()
        }
        stack_experts(weights, config)
        with torch.device("meta"):
            model = DeepseekV3ForCausalLM(config)
        model.to_empty(device="cpu")
        model.load_state_dict({k: v.float() for k, v in weights.items()}, strict=True)
        # to_empty leaves non-persistent buffers uninitialised.
        model.model.rotary_emb = deepseek.DeepseekV3RotaryEmbedding(config)
        self.model = model.eval()
        self.config = config
        self.feature_layers = tuple(feature_layers)
        self._features = []
        for layer in self.feature_layers:
            self.model.model.layers[layer].register_forward_hook(self._keep_features)
        self.use(attention, experts)
        self.reset()

    def use(self, attention, experts):
        """Selects the implementations; both names are from the *_VARIANTS tuples."""
        cls = ExpandedCacheAttention if attention == "expanded" else deepseek.DeepseekV3Attention
        for layer in self.model.model.layers:
            layer.self_attn.__class__ = cls
        self.model.set_experts_implementation(experts)
        self.attention, self.experts = attention, experts

    def _keep_features(self, _module, _args, output):
        self._features.append(output[0])

    def reset(self):
        """Forgets the sequence."""
        self.cache = DynamicCache(config=self.config)

    def length(self):
        """Number of cached positions."""
        return self.cache.get_seq_length()

    def forward(self, ids, positions=None, mask=None, last_only=False):
        """ids, positions: int64 [rows]; mask: additive [rows, cached + rows], None: causal."""
        self._features.clear()
        output = self.model(
            input_ids=ids[None],
            position_ids=None if positions is None else positions[None],
            attention_mask=None if mask is None else mask[None, None],
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1 if last_only else 0,
        )
        features = torch.cat(self._features, dim=-1) if self._features else None
        return output.logits[0], features

    def keep(self, start, rows):
        """Compacts the cache to positions [0, start) followed by the slots start + rows.

        rows: list of strictly increasing tail slots, beginning with 0.
        """
        kept = len(rows)
        contiguous = rows[-1] == kept - 1
        index = None if contiguous else torch.tensor(rows) + start
        for layer in self.cache.layers:
            if not contiguous:
                for tensor in (layer.keys, layer.values):
                    tensor[:, :, start : start + kept] = tensor.index_select(2, index)
            layer.keys = layer.keys[:, :, : start + kept]
            layer.values = layer.values[:, :, : start + kept]

    @property
    def embedding(self):
        return self.model.model.embed_tokens

    @property
    def head(self):
        return self.model.lm_head
