"""Cases of draft_attention, and whole forwards of small drafters under every convention."""

import json

import numpy as np

from kdtree.golden import seeded
from kdtree.golden.case import Case, i32, values
from kdtree.golden.layout import row_batch
from kdtree.golden.seeded import Seeded
from kdtree.ref import dflash
from kdtree.ref.verify_attention import gather_pages


def attention_case(name, seed, block, prefix, window, causal, note=""):
    """4 heads over 2 kv heads of dimension 32; requests with prefixes of their own."""
    rows = block * len(prefix)
    layout, n_pages = row_batch(seed, [block] * len(prefix), prefix)
    scale = np.float32(32**-0.5)
    inputs = {
        **layout,
        "q": seeded.seeded_f32(seed + 1, (rows, 4, 32), 1.5),
        "k": seeded.seeded_f32(seed + 2, (rows, 2, 32), 1.5),
        "v": seeded.seeded_f32(seed + 3, (rows, 2, 32), 1.0),
        "k_pages": Seeded(seed + 4, (n_pages, 64, 2, 32), 1.5),
        "v_pages": Seeded(seed + 5, (n_pages, 64, 2, 32), 1.0),
        "scale": scale,
        "sliding_window": i32(window),
        "causal": np.bool_(causal),
    }
    out = []
    for b, length in enumerate(prefix):
        own = slice(b * block, (b + 1) * block)
        ctx = (
            gather_pages(values(inputs[name]), layout["block_table"][b], length)
            for name in ("k_pages", "v_pages")
        )
        out.append(
            dflash.draft_attention(
                *(inputs[name][own].astype(np.float64) for name in "qkv"),
                *ctx,
                np.float64(scale),
                window,
                causal,
            )
        )
    return Case(
        "draft_attention", name, seed, inputs, {"out": np.concatenate(out).astype(np.float32)}, note
    )


def attention_cases():
    yield attention_case("full", 8000, 16, [0, 1, 63, 64, 200], 0, False, "block 16")
    yield attention_case("causal", 8010, 8, [5, 130], 0, True)
    yield attention_case("sliding", 8020, 8, [3, 64, 300], 20, False, "symmetric within the block")
    yield attention_case("sliding_causal", 8030, 8, [0, 70, 300], 5, True, "window below the block")


SMALL = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "rope_scaling": None,
    "max_position_embeddings": 4096,
    "block_size": 8,
    "num_target_layers": 5,
    "dflash_config": {"target_layer_ids": [0, 2], "mask_token_id": 61},
    "layer_types": ["full_attention"] * 3,
    "sliding_window": None,
    "attention_bias": False,
    "hidden_act": "silu",
    "vocab_size": 64,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXED = {
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": 6,
}
YARN = {
    "rope_type": "yarn",
    "factor": 64.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


def weight_shapes(c):
    hidden, dim, inter = c["hidden_size"], c["head_dim"], c["intermediate_size"]
    q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    shapes = {"fc": (hidden, 2 * hidden), "hidden_norm": (hidden,), "norm": (hidden,)}
    for layer in range(c["num_hidden_layers"]):
        at = f"layers.{layer}."
        shapes |= {
            at + "input_layernorm": (hidden,),
            at + "post_attention_layernorm": (hidden,),
            at + "self_attn.q_proj": (q, hidden),
            at + "self_attn.k_proj": (kv, hidden),
            at + "self_attn.v_proj": (kv, hidden),
            at + "self_attn.o_proj": (hidden, q),
            at + "self_attn.q_norm": (dim,),
            at + "self_attn.k_norm": (dim,),
            at + "mlp.gate_proj": (inter, hidden),
            at + "mlp.up_proj": (inter, hidden),
            at + "mlp.down_proj": (hidden, inter),
        }
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def forward_case(name, seed, changes, note, causal_sliding=True):
    """A drafter of random weights (named as in its checkpoint, config.json in the metadata) on 20
    committed tokens: features -> ctx_k, ctx_v; embedded block -> hidden."""
    config = {**SMALL, **changes}
    weights = {
        name: Seeded(seed + i, shape, 0.15 if len(shape) == 2 else 1.0)
        for i, (name, shape) in enumerate(weight_shapes(config).items())
    }
    drafter = dflash.Drafter(
        config, {name: values(w) for name, w in weights.items()}, causal_sliding=causal_sliding
    )
    feature = seeded.seeded_f32(seed + 90, (20, 64), 1.0)
    embedded = seeded.seeded_f32(seed + 91, (8, 32), 1.0)
    ctx = dflash.context_kv(drafter, feature.astype(np.float64), np.arange(20))
    hidden = dflash.forward(drafter, embedded, *ctx)
    outputs = {"ctx_k": ctx[0], "ctx_v": ctx[1], "hidden": hidden}
    return Case(
        "dflash",
        name,
        seed,
        {
            **weights,
            "features": feature,
            "embedded": embedded,
            "causal_sliding": np.bool_(causal_sliding),
        },
        {key: value.astype(np.float32) for key, value in outputs.items()},
        note,
        {"config": json.dumps(config)},
    )


def cases():
    yield from attention_cases()
    yield forward_case("full", 8100, {}, "no sliding layers, plain RoPE")
    yield forward_case("sliding_causal", 8200, MIXED, "sliding layers causal: the default")
    yield forward_case("sliding_symmetric", 8300, MIXED, "sliding layers not causal", False)
    yield forward_case("yarn", 8400, {"rope_scaling": YARN}, "amplitude 0.1 ln 64 + 1")
    yield forward_case(
        "deepseek_yarn",
        8500,
        {
            "rope_theta": None,
            "rope_parameters": {**YARN, "rope_type": "deepseek_yarn", "rope_theta": 50000.0},
        },
        "amplitude 1, K2.6's spelling",
    )
