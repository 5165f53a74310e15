"""Random small checkpoints of many shapes: every mode, alone and in a batch, gives the same tokens,
and greedy ones are those of the numpy model."""

import os

import numpy as np
import pytest
from command import generate, needs_binary
from random_checkpoint import write_draft, write_target

from kdtree.ref import target_model

pytestmark = needs_binary

ENV = {**os.environ, "OMP_NUM_THREADS": "1"}  # matrices too small for more
MODES = [["--no-spec"], ["--chain"], ["--budget", 1], ["--budget", 200]]


def check_greedy(directory, prompt, output):
    """Each token of the output is the best, or within rounding of it, after those before it."""
    model = target_model.Target(directory)
    if model.config["tie_word_embeddings"]:
        model._cache["lm_head"] = model["model.embed_tokens"]
    tokens = prompt + output[:-1]
    logits, _, _ = target_model.forward(
        model, tokens, np.arange(len(tokens)), target_model.empty_cache(model)
    )
    logits = logits[len(prompt) - 1 :]
    chosen = logits[np.arange(len(output)), output]
    assert (logits.max(axis=1) - chosen).max() < 1e-3


@pytest.mark.parametrize("seed", range(4))
def test_modes_agree(tmp_path, seed):
    rng = np.random.default_rng(seed)
    config = write_target(tmp_path / "target", rng)
    write_draft(tmp_path / "draft", rng, config)
    context = config["max_position_embeddings"]
    prompts = [
        rng.integers(0, config["vocab_size"], n).tolist() for n in (1, context // 2, context - 1)
    ]
    texts = [",".join(map(str, prompt)) for prompt in prompts]
    pair = ["--model", tmp_path / "target", "--draft", tmp_path / "draft", "--max-tokens", 20]
    batch = [word for text in texts for word in ("--prompt-ids", text)]
    for sampling in ([], ["--temperature", 0.9, "--top-p", 0.95, "--seed", seed]):
        flags = [*pair, *sampling]
        want = [
            generate(*flags, "--no-spec", "--prompt-ids", text, env=ENV)["token_ids"]
            for text in texts
        ]
        for mode in MODES:
            runs = generate(*flags, *mode, *batch, env=ENV)
            assert [run["token_ids"] for run in runs] == want, mode
        if not sampling:
            for prompt, output in zip(prompts, want):
                check_greedy(tmp_path / "target", prompt, output)
