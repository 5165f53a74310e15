"""The DFlash block-diffusion drafter in plain PyTorch float32, with a context KV cache.

One forward takes the block [root token, MASK x L] at positions start .. start + L and returns
logits for the L masked positions. Every layer attends, without a causal mask, to the context
keys and values of positions < start (computed once per committed token from the target's
features) and to the block itself.
"""

import json
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


def rotate(x, cos, sin):
    """Half-split RoPE. x: [rows, heads, dim]; cos, sin: [rows, 1, dim / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Drafter:
    """Full-attention DFlash layers with plain RoPE; anything else is refused."""

    def __init__(self, directory, target):
        directory = pathlib.Path(directory)
        config = json.loads((directory / "config.json").read_text())
        if config.get("rope_scaling") or any(
            kind != "full_attention" for kind in config.get("layer_types", [])
        ):
            raise ValueError(f"{directory}: only full attention with plain RoPE is implemented")
        weights = {
            name: tensor.float()
            for name, tensor in load_file(directory / "model.safetensors").items()
        }
        self.config = config
        self.feature_layers = config["dflash_config"]["target_layer_ids"]
        self.block_size = config["block_size"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config["num_key_value_heads"]
        self.dim = config["head_dim"]
        self.eps = config["rms_norm_eps"]
        self.embedding, self.head = target.embedding, target.head
        self.fc, self.hidden_norm = weights["fc.weight"], weights["hidden_norm.weight"]
        self.norm = weights["norm.weight"]
        self.layers = [
            self._fused(weights, f"layers.{i}.") for i in range(config["num_hidden_layers"])
        ]
        max_length = config["max_position_embeddings"]
        inv_freq = config["rope_theta"] ** (-torch.arange(0, self.dim, 2).float() / self.dim)
        angles = torch.arange(max_length).float()[:, None, None] * inv_freq
        self.cos, self.sin = angles.cos(), angles.sin()
        mask = config["dflash_config"]["mask_token_id"]
        self.block = torch.full((self.block_size,), mask)
        shape = (len(self.layers), self.kv_heads, max_length, self.dim)
        self.keys, self.values = torch.zeros(shape), torch.zeros(shape)

    @staticmethod
    def _fused(weights, prefix):
        """One layer's weights; projections that share their input are one matrix."""
        attn, mlp = prefix + "self_attn.", prefix + "mlp."
        kv = [weights[attn + "k_proj.weight"], weights[attn + "v_proj.weight"]]
        return {
            "qkv": torch.cat([weights[attn + "q_proj.weight"], *kv]),
            "kv": torch.cat(kv),
            "o": weights[attn + "o_proj.weight"],
            "q_norm": weights[attn + "q_norm.weight"],
            "k_norm": weights[attn + "k_norm.weight"],
            "gate_up": torch.cat(
                [weights[mlp + "gate_proj.weight"], weights[mlp + "up_proj.weight"]]
            ),
            "down": weights[mlp + "down_proj.weight"],
            "in_norm": weights[prefix + "input_layernorm.weight"],
            "mlp_norm": weights[prefix + "post_attention_layernorm.weight"],
        }

    def _rms(self, x, weight):
        return F.rms_norm(x, weight.shape, weight, self.eps)

    def _store(self, layer, kv, start):
        """Writes keys (normed, rotated) and values of kv [rows, 2 * kv_heads * dim] at start."""
        rows = kv.shape[0]
        k, v = kv.view(rows, 2, self.kv_heads, self.dim).unbind(1)
        where = slice(start, start + rows)
        k = rotate(self._rms(k, self.layers[layer]["k_norm"]), self.cos[where], self.sin[where])
        self.keys[layer, :, where] = k.transpose(0, 1)
        self.values[layer, :, where] = v.transpose(0, 1)

    def extend(self, features, start):
        """Adds committed positions start .. to the context. features: [rows, layers * hidden]."""
        context = self._rms(features @ self.fc.T, self.hidden_norm)
        for i, layer in enumerate(self.layers):
            self._store(i, context @ layer["kv"].T, start)

    def draft(self, root, start):
        """Logits [L, vocab] for positions start + 1 .. start + L; root sits at position start."""
        self.block[0] = root
        h = self.embedding(self.block)
        rows, end = self.block_size, start + self.block_size
        cos, sin = self.cos[start:end], self.sin[start:end]
        group = self.heads // self.kv_heads
        for i, layer in enumerate(self.layers):
            qkv = self._rms(h, layer["in_norm"]) @ layer["qkv"].T
            q, kv = qkv.split([self.heads * self.dim, 2 * self.kv_heads * self.dim], dim=-1)
            self._store(i, kv, start)
            q = rotate(self._rms(q.view(rows, self.heads, self.dim), layer["q_norm"]), cos, sin)
            # Without a mask the query heads of one key head are just more rows.
            q = q.view(rows, self.kv_heads, group, self.dim).permute(1, 2, 0, 3)
            out = F.scaled_dot_product_attention(
                q.reshape(1, self.kv_heads, group * rows, self.dim),
                self.keys[None, i, :, :end],
                self.values[None, i, :, :end],
            )
            out = out.view(self.kv_heads, group, rows, self.dim).permute(2, 0, 1, 3)
            h = h + out.reshape(rows, -1) @ layer["o"].T
            gate, up = (self._rms(h, layer["mlp_norm"]) @ layer["gate_up"].T).chunk(2, dim=-1)
            h = h + (F.silu(gate) * up) @ layer["down"].T
        return self.head(self._rms(h[1:], self.norm))
