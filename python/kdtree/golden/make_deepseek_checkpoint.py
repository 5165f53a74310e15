"""Writes random DeepSeek-V3-shaped checkpoints and the logits transformers computes from them.

    python -m kdtree.golden.make_deepseek_checkpoint tests/golden/deepseek_v3_tiny

Run in python/ or with it on PYTHONPATH. Besides numpy it needs from PyPI torch==2.11.0,
transformers==5.24.0 and safetensors==0.8.0, so tests never run it: they read what it wrote.

Two models, four checkpoints, in DeepSeek's flat naming:
- fp8_yarn: FP8 e4m3 with 128x128 weight_scale_inv (partial blocks in both directions, head
  boundaries inside blocks), YaRN, expert groups, an MTP layer to skip, three shards with an index.
- plain_{bf16,f16,f32}: q_lora_rank null, plain RoPE, two shared experts, no groups; the same
  values in three dtypes, so they share their expected logits; bf16 is in two shards.

<model>.kdtr holds per prompt i: prompt<i>.ids i32 [n], prompt<i>.logits f32 [n, vocab], and for
prompt 1 prompt1.hidden f32 [layers, n, hidden], the residual stream after every layer. All of it is
transformers' DeepseekV3ForCausalLM in float32 on the dequantized weights.
"""

import argparse
import json
import pathlib

import numpy as np
import safetensors.torch
import torch
import transformers
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, DynamicCache
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

from kdtree import kdtr

PROMPT_LENGTHS = (1, 7, 70)
BLOCK = 128
FP8_MAX = 448.0
# Expert choices closer than this could fall either way with the order of a sum.
MIN_ROUTING_MARGIN = 1e-3

COMMON = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "hidden_act": "silu",
    "attention_bias": False,
    # The norms of the latents use 1e-6 whatever this says; the latents below are small enough to
    # tell the two apart.
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}

FP8_YARN = COMMON | {
    "hidden_size": 160,
    "vocab_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 80,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 48,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "intermediate_size": 264,
    "routed_scaling_factor": 2.5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2560,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.8,
    },
    "num_nextn_predict_layers": 1,
    "torch_dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "weight_block_size": [BLOCK, BLOCK],
        "activation_scheme": "dynamic",
    },
}

PLAIN = COMMON | {
    "hidden_size": 48,
    "vocab_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 2,
    "moe_intermediate_size": 16,
    "intermediate_size": 80,
    "routed_scaling_factor": 1.5,
    "rope_theta": 50000.0,
    "max_position_embeddings": 512,
    "rope_scaling": None,
    "num_nextn_predict_layers": 0,
}


# ---------------------------------------------------------------------------- random weights


class Weights:
    """Random float32 weights by name, of sizes that keep activations near 1."""

    def __init__(self, config, seed):
        self.config = config
        self.rng = np.random.default_rng(seed)
        self.tensors = {}

    def linear(self, name, rows, columns, gain=1.0):
        self.tensors[name + ".weight"] = self.rng.normal(
            0, gain / np.sqrt(columns), (rows, columns)
        ).astype(np.float32)

    def norm(self, name, n):
        self.tensors[name + ".weight"] = self.rng.normal(1, 0.2, n).astype(np.float32)

    def attention(self, prefix):
        c = self.config
        heads, nope, rope = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        hidden, latent, v = c["hidden_size"], c["kv_lora_rank"], c["v_head_dim"]
        q_rows = heads * (nope + rope)
        if c["q_lora_rank"] is None:
            self.linear(prefix + "q_proj", q_rows, hidden)
        else:
            self.linear(prefix + "q_a_proj", c["q_lora_rank"], hidden, gain=0.03)
            self.norm(prefix + "q_a_layernorm", c["q_lora_rank"])
            self.linear(prefix + "q_b_proj", q_rows, c["q_lora_rank"])
        self.linear(prefix + "kv_a_proj_with_mqa", latent + rope, hidden)
        self.tensors[prefix + "kv_a_proj_with_mqa.weight"][:latent] *= 0.03
        self.norm(prefix + "kv_a_layernorm", latent)
        self.linear(prefix + "kv_b_proj", heads * (nope + v), latent)
        self.linear(prefix + "o_proj", hidden, heads * v)

    def mlp(self, prefix, intermediate):
        hidden = self.config["hidden_size"]
        self.linear(prefix + "gate_proj", intermediate, hidden)
        self.linear(prefix + "up_proj", intermediate, hidden)
        self.linear(prefix + "down_proj", hidden, intermediate)

    def moe(self, prefix):
        c = self.config
        width, experts = c["moe_intermediate_size"], c["n_routed_experts"]
        self.linear(prefix + "gate", experts, c["hidden_size"], gain=1.5)
        # Positive, so that a masked group never wins, be it masked with -inf or with 0.
        self.tensors[prefix + "gate.e_score_correction_bias"] = self.rng.uniform(
            0.01, 0.4, experts
        ).astype(np.float32)
        for expert in range(experts):
            self.mlp(f"{prefix}experts.{expert}.", width)
        self.mlp(prefix + "shared_experts.", width * c["n_shared_experts"])

    def layers(self):
        c = self.config
        for layer in range(c["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            self.norm(prefix + "input_layernorm", c["hidden_size"])
            self.attention(prefix + "self_attn.")
            self.norm(prefix + "post_attention_layernorm", c["hidden_size"])
            if layer < c["first_k_dense_replace"]:
                self.mlp(prefix + "mlp.", c["intermediate_size"])
            else:
                self.moe(prefix + "mlp.")

    def mtp_layer(self):
        """What tells an MTP layer apart, and some of its decoder block: all of it is skipped."""
        c = self.config
        hidden, prefix = c["hidden_size"], f"model.layers.{c['num_hidden_layers']}."
        for name in ("enorm", "hnorm", "shared_head.norm", "input_layernorm"):
            self.norm(prefix + name, hidden)
        self.linear(prefix + "eh_proj", hidden, 2 * hidden)
        self.linear(prefix + "self_attn.q_a_proj", c["q_lora_rank"], hidden)

    def make(self):
        c = self.config
        vocab, hidden = c["vocab_size"], c["hidden_size"]
        self.linear("model.embed_tokens", vocab, hidden, gain=np.sqrt(hidden))
        self.layers()
        for _ in range(c["num_nextn_predict_layers"]):
            self.mtp_layer()
        self.norm("model.norm", hidden)
        self.linear("lm_head", vocab, hidden, gain=2.0)
        return {name: torch.from_numpy(w) for name, w in self.tensors.items()}


# ---------------------------------------------------------------------------- stored forms


def is_fp8(name):
    """Linear weights of attention and MLPs; not the router, embeddings, head or norms."""
    return name.endswith("_proj.weight") or name.endswith("kv_a_proj_with_mqa.weight")


def expand_scale(scale, shape):
    """weight_scale_inv [ceil(out/128), ceil(in/128)] -> one scale per element, [out, in]."""
    full = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return full[: shape[0], : shape[1]]


def quantize_fp8(weight, rng):
    """weight f32 [out, in] -> (e4m3 [out, in], weight_scale_inv), dequantized = product."""
    rows, columns = (-(-n // BLOCK) for n in weight.shape)
    # Blocks of unequal size: a scale taken from the wrong block is then far off.
    weight = weight * expand_scale(
        torch.from_numpy(np.exp2(rng.uniform(-1, 1, (rows, columns))).astype(np.float32)),
        weight.shape,
    )
    scale = torch.empty(rows, columns)
    for r in range(rows):
        for c in range(columns):
            block = weight[r * BLOCK : (r + 1) * BLOCK, c * BLOCK : (c + 1) * BLOCK]
            scale[r, c] = block.abs().max() / FP8_MAX
    codes = (weight / expand_scale(scale, weight.shape)).clamp(-FP8_MAX, FP8_MAX)
    return codes.to(torch.float8_e4m3fn), scale


def store_fp8(weights, seed):
    """-> (stored tensors, float32 values they stand for)."""
    rng = np.random.default_rng([seed, 8])
    stored, values = {}, {}
    for name, weight in weights.items():
        if is_fp8(name):
            stored[name], scale = quantize_fp8(weight, rng)
            stored[name + "_scale_inv"] = scale
            values[name] = stored[name].float() * expand_scale(scale, weight.shape)
        elif name.endswith("e_score_correction_bias"):
            stored[name] = values[name] = weight
        else:
            stored[name] = weight.bfloat16()
            values[name] = stored[name].float()
    return stored, values


def round_to_narrow(weights):
    """Values that bf16 and f16 both hold exactly."""
    smallest_normal_f16 = 2.0**-14
    rounded = {name: weight.bfloat16().float() for name, weight in weights.items()}
    return {
        name: torch.where(w.abs() < smallest_normal_f16, torch.zeros_like(w), w)
        for name, w in rounded.items()
    }


def write_checkpoint(directory, config, tensors, n_shards):
    """config.json and model.safetensors, or n_shards shards and their index."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if n_shards == 1:
        safetensors.torch.save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        return
    names, per_shard = list(tensors), -(-len(tensors) // n_shards)
    where, total = {}, 0
    for shard in range(n_shards):
        file_name = f"model-{shard + 1:05}-of-{n_shards:05}.safetensors"
        part = {n: tensors[n] for n in names[shard * per_shard : (shard + 1) * per_shard]}
        safetensors.torch.save_file(part, directory / file_name, {"format": "pt"})
        where |= dict.fromkeys(part, file_name)
        total += sum(t.numel() * t.element_size() for t in part.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


# ---------------------------------------------------------------------------- transformers


def load_model(config, values):
    """DeepseekV3ForCausalLM in float32 with these weights; MTP layers dropped."""
    fields = {
        name: value
        for name, value in config.items()
        if name not in ("architectures", "model_type", "torch_dtype", "quantization_config")
    }
    rope = dict(fields.pop("rope_scaling") or {"type": "default"})
    rope |= {"rope_type": rope.pop("type"), "rope_theta": fields.pop("rope_theta")}
    model = DeepseekV3ForCausalLM(
        DeepseekV3Config(rope_parameters=rope, attn_implementation="eager", **fields)
    )
    mtp = f"model.layers.{config['num_hidden_layers']}."
    state = {name: value for name, value in values.items() if not name.startswith(mtp)}
    for layer in range(config["first_k_dense_replace"], config["num_hidden_layers"]):
        base = f"model.layers.{layer}.mlp.experts."
        experts = [
            {proj: state.pop(f"{base}{e}.{proj}_proj.weight") for proj in ("gate", "up", "down")}
            for e in range(config["n_routed_experts"])
        ]
        # transformers 5.x keeps the experts of a layer stacked, gate above up.
        state[base + "gate_up_proj"] = torch.stack(
            [torch.cat((e["gate"], e["up"])) for e in experts]
        )
        state[base + "down_proj"] = torch.stack([e["down"] for e in experts])
    model.load_state_dict(state, strict=True)
    return model.float().eval()


def routing_margin(router, router_logits):
    """Smallest gap between a chosen and an unchosen group or expert, over all tokens."""
    choice = router_logits.sigmoid() + router.e_score_correction_bias
    grouped = choice.view(choice.shape[0], router.num_group, -1)
    margins = []
    if router.topk_group < router.num_group:
        scores = grouped.topk(2, dim=-1)[0].sum(-1).sort(descending=True)
        margins.append(scores[0][:, router.topk_group - 1] - scores[0][:, router.topk_group])
        kept = torch.zeros_like(grouped[..., 0]).scatter(1, scores[1][:, : router.topk_group], 1)
        choice = grouped.masked_fill(kept[..., None] == 0, float("-inf")).flatten(1)
    best = choice.sort(descending=True)[0]
    margins.append(best[:, router.top_k - 1] - best[:, router.top_k])
    return min(margin.min().item() for margin in margins)


@torch.inference_mode()
def run_prompts(model, prompts):
    """-> tensors of the bundle. Fails if a choice is near a tie or caching changes the logits."""
    margins = []
    for module in model.modules():
        if isinstance(module, DeepseekV3TopkRouter):
            module.register_forward_hook(
                lambda router, _, output: margins.append(routing_margin(router, output[0]))
            )
    hidden = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda _module, _, output: hidden.append(output[0]))
    tensors = {}
    for i, prompt in enumerate(prompts):
        ids = torch.from_numpy(prompt)[None].long()
        hidden.clear()
        logits = model(ids, use_cache=False).logits[0]
        tensors[f"prompt{i}.ids"] = prompt
        tensors[f"prompt{i}.logits"] = logits.numpy()
        if i == 1:
            tensors["prompt1.hidden"] = torch.stack(hidden).numpy()
        cache = DynamicCache(config=model.config)
        parts = [model(p, cache=cache, use_cache=True).logits[0] for p in ids.split(33, dim=1)]
        error = (torch.cat(parts) - logits).norm() / logits.norm()
        assert error < 1e-5, f"prompt {i}: cached logits differ by {error}"
    assert min(margins) > MIN_ROUTING_MARGIN, f"expert choice within {min(margins)}: other seed"
    print(f"smallest routing margin {min(margins):.2e}")
    return tensors


def write_expected(path, config, values, seed):
    rng = np.random.default_rng([seed, 1])
    prompts = [
        rng.integers(2, config["vocab_size"], n).astype(np.int32) for n in PROMPT_LENGTHS
    ]
    tensors = run_prompts(load_model(config, values), prompts)
    meta = {
        "generator": "python -m kdtree.golden.make_deepseek_checkpoint",
        "seed": str(seed),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
    }
    kdtr.write(path, tensors, meta)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1, help="not every seed clears the margin")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    stored, values = store_fp8(Weights(FP8_YARN, args.seed).make(), args.seed)
    write_checkpoint(args.out / "fp8_yarn", FP8_YARN, stored, n_shards=3)
    write_expected(args.out / "fp8_yarn.kdtr", FP8_YARN, values, args.seed)

    values = round_to_narrow(Weights(PLAIN, args.seed).make())
    for name, dtype, n_shards in (
        ("bf16", torch.bfloat16, 2), ("f16", torch.float16, 1), ("f32", torch.float32, 1),
    ):  # fmt: skip
        stored = {key: value.to(dtype) for key, value in values.items()}
        config = PLAIN | {"torch_dtype": str(dtype).removeprefix("torch.")}
        write_checkpoint(args.out / f"plain_{name}", config, stored, n_shards)
    write_expected(args.out / "plain.kdtr", PLAIN, values, args.seed)


if __name__ == "__main__":
    main()
