"""Whole sampled runs on the tiny pair: the tokens that every budget and batch must give."""

import numpy as np

from kdtree.golden.case import Case, i32
from kdtree.golden.real_model import pair, prompts
from kdtree.ref import ddtree
from kdtree.ref.sampler import Sampling

# An fp32 engine's logits differ from ours by about 1e-5; so may drawn quantities and probabilities.
MIN_MARGIN, MIN_FILTER_MARGIN = 1e-3, 3e-5
RUNS = (
    ("t10", 4, Sampling(1.0, seed=5)),
    ("t07_p09", 3, Sampling(0.7, top_p=0.9, seed=9)),
    ("t12_k20_m01", 6, Sampling(1.2, 20, 1.0, 0.1, 2**40 + 11)),
)


def cases():
    """`tokens`, for max_tokens = 16 without stop tokens; the plain run, since all modes agree."""
    for name, prompt, sampling in RUNS:
        run = ddtree.generate(*pair(), prompts()[prompt], 16, "plain", sampling)
        assert run.margin > MIN_MARGIN and run.filter_margin > MIN_FILTER_MARGIN, (
            f"{name}: margins {run.margin}, {run.filter_margin}: change the seed"
        )
        inputs = {
            "prompt_ids": np.array(prompts()[prompt], np.int32),
            "max_tokens": i32(16),
            "sampling.temperature": np.float32(sampling.temperature),
            "sampling.top_p": np.float32(sampling.top_p),
            "sampling.min_p": np.float32(sampling.min_p),
            "sampling.top_k": i32(sampling.top_k),
            "sampling.seed": np.uint64(sampling.seed),
        }
        yield Case(
            "generate",
            name,
            sampling.seed,
            inputs,
            {"tokens": np.array(run.tokens, np.int32)},
            "tiny-k2, --ignore-eos, any budget",
        )
