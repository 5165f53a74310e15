"""Cases of draft_topk: element types, ties, holes, bad requests, vocabularies small and real."""

import numpy as np

from kdtree import kdtr
from kdtree.golden import seeded
from kdtree.golden.case import Case, i32, values
from kdtree.golden.drafts import draft_logits
from kdtree.ref.draft_topk import draft_topk


def case(name, seed, logits, k, note):
    """logits: [B, L, V] bf16, f16 or f32, stored or seeded."""
    parts = {"logp": [], "ids": [], "log_z": [], "status": []}
    for request in values(logits):
        depth = len(request)
        try:
            logp, ids, log_z = draft_topk(request, k)
            status = 0
        except ValueError:
            logp, ids = np.full((depth, k), -np.inf, np.float32), np.full((depth, k), -1, np.int32)
            log_z, status = np.full(depth, -np.inf, np.float32), 1
        for field, value in zip(parts, (logp, ids, log_z, np.int32(status))):
            parts[field].append(value)
    outputs = {field: np.stack(value) for field, value in parts.items()}
    return Case("draft_topk", name, seed, {"logits": logits, "k": i32(k)}, outputs, note)


def cases():
    kinds = ("realistic", "peaked", "flat", "ties", "sparse")
    logits = np.stack([draft_logits(kind, 2000 + i, 4, 300) for i, kind in enumerate(kinds)])
    yield case(
        "kinds", 2000, kdtr.bf16(logits), 32, "one request of each kind: " + ", ".join(kinds)
    )
    yield case("f16", 2010, logits[:2].astype(np.float16), 8, "the same values as f16")
    yield case("f32", 2020, seeded.seeded_f32(2020, (2, 3, 257), 2.0), 17, "fp32, odd sizes")
    yield case(
        "vocab_below_k", 2030, kdtr.bf16(logits[:2, :, :10].copy()), 15, "10 tokens for K = 15"
    )
    yield case("all_equal", 2040, np.zeros((1, 2, 300), np.float32), 256, "ids ascending")
    yield case(
        "large",
        2050,
        seeded.seeded_f32(2050, (1, 3, 100), 20000.0),
        8,
        "exp of a raw logit overflows",
    )
    bad = logits[[0, 1, 0, 2]].copy()
    bad[1, 2, 77], bad[2, 3, 5], bad[3, 1, :] = np.nan, np.inf, -np.inf
    yield case(
        "bad_requests", 2060, bad, 8, "request 1 NaN, 2 +inf; 3 has a depth that is all -inf"
    )
    yield case(
        "tiny_vocab", 2070, seeded.Seeded(2070, (1, 15, 4096), 3.0), 64, "a whole small vocabulary"
    )
    yield case("k1024", 2080, seeded.Seeded(2080, (1, 2, 4096), 3.0), 1024, "the largest K")
    yield case(
        "real_vocab", 2090, seeded.Seeded(2090, (1, 3, 163840), 2.0), 64, "Kimi's vocabulary"
    )


def large_cases():
    yield case(
        "real_batch",
        2100,
        seeded.Seeded(2100, (4, 15, 163840), 2.0),
        64,
        "a whole draft of Kimi's vocabulary",
    )
