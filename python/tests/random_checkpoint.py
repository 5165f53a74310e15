"""Writes small random checkpoints of every legal shape: a target and a drafter that fits it."""

import json
import pathlib

import numpy as np

from kdtree import narrow


def _encode(values, dtype):
    if dtype == "BF16":
        return narrow.bf16(np.asarray(values, np.float32)).codes
    return np.asarray(values, np.float16 if dtype == "F16" else np.float32)


class Writer:
    """Collects random tensors; linear layers are stored in the checkpoint's quantization."""

    def __init__(self, rng, quantization=None, group=0):
        self.rng, self.quantization, self.group = rng, quantization, group
        self.tensors = {}

    def dense(self, name, *shape, mean=0.0, dtype=None):
        dtype = dtype or self.rng.choice(["F32", "BF16", "F16"])
        values = self.rng.normal(mean, 1 / np.sqrt(shape[-1]), shape)
        self.tensors[name] = dtype, _encode(values, dtype)

    def norm(self, module, width):
        self.dense(f"{module}.weight", width, mean=1.0)

    def linear(self, module, out, columns):
        if self.quantization == "int4":
            words = self.rng.integers(0, 2**32, (out, columns // 8), np.uint32)
            scales = self.rng.uniform(0.1, 0.3, (out, columns // self.group)) / np.sqrt(columns)
            self.tensors[f"{module}.weight_packed"] = "I32", words
            self.tensors[f"{module}.weight_scale"] = "BF16", _encode(scales, "BF16")
        elif self.quantization == "fp8":
            codes = self.rng.integers(0, 0x78, (out, columns), np.uint8)
            codes |= self.rng.integers(0, 2, codes.shape, np.uint8) << 7
            scales = self.rng.uniform(0.005, 0.02, (-(-out // 128), -(-columns // 128)))
            self.tensors[f"{module}.weight"] = "F8_E4M3", codes
            self.tensors[f"{module}.weight_scale_inv"] = "F32", _encode(scales, "F32")
        else:
            self.dense(f"{module}.weight", out, columns, dtype="BF16")

    def mlp(self, module, hidden, inner):
        for name, out, columns in (("gate", inner, hidden), ("up", inner, hidden),
                                   ("down", hidden, inner)):  # fmt: skip
            self.linear(f"{module}.{name}_proj", out, columns)

    def save(self, directory, config):
        directory = pathlib.Path(directory)
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
        header, payload, offset = {}, [], 0
        for name, (dtype, values) in self.tensors.items():
            end = offset + values.nbytes
            header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": [offset, end]}
            payload.append(values.tobytes())
            offset = end
        text = json.dumps(header).encode()
        data = len(text).to_bytes(8, "little") + text + b"".join(payload)
        (directory / "model.safetensors").write_bytes(data)


def _quantization_config(quantization, group):
    if quantization == "fp8":
        return {"quant_method": "fp8", "weight_block_size": [128, 128]}
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized",
            "config_groups": groups}  # fmt: skip


def _yarn(rng):
    return {"type": "yarn", "factor": 8.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
            "original_max_position_embeddings": int(rng.choice([16, 64])),
            "mscale_all_dim": float(rng.choice([0.0, 1.0]))}  # fmt: skip


def target_config(rng, quantization, group):
    def pick(*values):
        return values[rng.integers(len(values))]

    unit = group or 1  # widths that INT4 groups must divide

    def width(low, high):
        return int(rng.integers(-(-low // unit), high // unit + 1)) * unit

    layers, experts = int(rng.integers(1, 4)), pick(1, 4, 6, 8)
    n_group = pick(1, 2) if experts > 1 else 1
    topk_group = int(rng.integers(1, n_group + 1))
    heads = pick(1, 2, 3, 8)
    config = {
        "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": width(8, 96),
        "num_hidden_layers": layers, "num_attention_heads": heads,
        "q_lora_rank": pick(None, width(8, 64)), "kv_lora_rank": width(8, 128),
        "qk_nope_head_dim": pick(1, 8, 33), "qk_rope_head_dim": pick(2, 6, 64),
        "v_head_dim": width(1, 48), "n_routed_experts": experts, "n_group": n_group,
        "topk_group": topk_group,
        "num_experts_per_tok": int(rng.integers(1, experts // n_group * topk_group + 1)),
        "n_shared_experts": pick(0, 1, 2), "moe_intermediate_size": width(8, 48),
        "intermediate_size": width(8, 100), "first_k_dense_replace": pick(0, 1, layers),
        "routed_scaling_factor": 2.5, "norm_topk_prob": pick(True, False),
        "vocab_size": pick(1, 2, 64, 257), "rope_theta": 1e4, "rms_norm_eps": 1e-5,
        "max_position_embeddings": pick(5, 64, 65, 100), "tie_word_embeddings": pick(True, False),
        "rope_scaling": pick(None, _yarn(rng)),
    }  # fmt: skip
    if quantization:
        config["quantization_config"] = _quantization_config(quantization, group)
    return config


def write_target(directory, rng):
    """Returns the config."""
    quantization = rng.choice([None, "int4", "fp8"])
    group = int(rng.choice([8, 24, 32])) if quantization == "int4" else 0
    c = target_config(rng, quantization, group)
    w, hidden, heads = Writer(rng, quantization, group), c["hidden_size"], c["num_attention_heads"]
    w.dense("model.embed_tokens.weight", c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        w.norm(f"{layer}.input_layernorm", hidden)
        w.norm(f"{layer}.post_attention_layernorm", hidden)
        q_width = heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
        latent, rank = c["kv_lora_rank"], c["q_lora_rank"]
        if rank is None:
            w.linear(f"{attention}.q_proj", q_width, hidden)
        else:
            w.linear(f"{attention}.q_a_proj", rank, hidden)
            w.norm(f"{attention}.q_a_layernorm", rank)
            w.linear(f"{attention}.q_b_proj", q_width, rank)
        w.linear(f"{attention}.kv_a_proj_with_mqa", latent + c["qk_rope_head_dim"], hidden)
        w.norm(f"{attention}.kv_a_layernorm", latent)
        kv_width = heads * (c["qk_nope_head_dim"] + c["v_head_dim"])
        w.linear(f"{attention}.kv_b_proj", kv_width, latent)
        w.linear(f"{attention}.o_proj", hidden, heads * c["v_head_dim"])
        if i < c["first_k_dense_replace"]:
            w.mlp(mlp, hidden, c["intermediate_size"])
            continue
        experts, inner = c["n_routed_experts"], c["moe_intermediate_size"]
        w.dense(f"{mlp}.gate.weight", experts, hidden)
        w.dense(f"{mlp}.gate.e_score_correction_bias", experts, mean=2.0)
        for expert in range(experts):
            w.mlp(f"{mlp}.experts.{expert}", hidden, inner)
        if c["n_shared_experts"]:
            w.mlp(f"{mlp}.shared_experts", hidden, c["n_shared_experts"] * inner)
    w.norm("model.norm", hidden)
    if not c["tie_word_embeddings"]:
        w.dense("lm_head.weight", c["vocab_size"], hidden)
    w.save(directory, c)
    return c


def write_draft(directory, rng, target):
    """A drafter for the target of that config."""
    layers, hidden = int(rng.integers(1, 3)), target["hidden_size"]
    kv_heads, dim = int(rng.integers(1, 3)), int(rng.choice([2, 10, 64]))
    heads = kv_heads * int(rng.integers(1, 4))
    read = rng.integers(0, target["num_hidden_layers"], rng.integers(1, 4)).tolist()
    w = Writer(rng)
    w.linear("fc", hidden, len(read) * hidden)
    w.norm("hidden_norm", hidden)
    w.norm("norm", hidden)
    for i in range(layers):
        layer, attention = f"layers.{i}", f"layers.{i}.self_attn"
        w.norm(f"{layer}.input_layernorm", hidden)
        w.norm(f"{layer}.post_attention_layernorm", hidden)
        for name, width in (("q", heads * dim), ("k", kv_heads * dim), ("v", kv_heads * dim)):
            w.linear(f"{attention}.{name}_proj", width, hidden)
        w.linear(f"{attention}.o_proj", hidden, heads * dim)
        w.norm(f"{attention}.q_norm", dim)
        w.norm(f"{attention}.k_norm", dim)
        w.mlp(f"{layer}.mlp", hidden, 24)
    w.save(directory, {
        "architectures": ["DFlashDraftModel"], "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim,
        "intermediate_size": 24, "rope_theta": 1e4, "max_position_embeddings": 64,
        "block_size": int(rng.choice([2, 8, 32])), "vocab_size": target["vocab_size"],
        "num_target_layers": target["num_hidden_layers"], "sliding_window": 7,
        "layer_types": [str(rng.choice(["full_attention", "sliding_attention"]))] * layers,
        "dflash_config": {"target_layer_ids": read,
                          "mask_token_id": int(rng.integers(target["vocab_size"]))},
    })  # fmt: skip
