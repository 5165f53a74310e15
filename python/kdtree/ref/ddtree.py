"""The whole decoding loop: plain, DFlash chain, or DDTree (arXiv 2604.12989, Algorithm 2), one
request, greedy or sampled, on the numpy models."""

from dataclasses import dataclass, field

import numpy as np

from . import ancestors, dflash, target_model
from .draft_topk import draft_topk
from .sampler import Sampling
from .tree_accept import tree_accept_logits
from .tree_build import chain, tree_build


@dataclass
class Run:
    """What a request produced."""

    tokens: list = field(default_factory=list)  # emitted tokens, a stop token included
    acceptance: list = field(default_factory=list)  # per round, root counted, before truncation
    trees: list = field(default_factory=list)
    accepted: list = field(default_factory=list)  # node ids per round
    margin: float = np.inf  # smallest margin of a draw of the paths
    filter_margin: float = np.inf  # same of the filters
    prompt_logits: np.ndarray = None  # [V] at the last prompt token


def draft_tree(target, drafter, root, ctx, mode):
    """mode: "plain", "chain" or a budget. ctx = (k, v) of the drafter's context."""
    if mode == "plain":
        return chain([], root)
    c = drafter.config
    ids = [root] + [c["dflash_config"]["mask_token_id"]] * (c["block_size"] - 1)
    hidden = dflash.forward(drafter, target["model.embed_tokens"][ids], *ctx)
    logits = (hidden[1:] @ target["lm_head"].T).astype(np.float32)
    if mode == "chain":
        return chain(logits.argmax(axis=-1), root)
    logp, ids, _ = draft_topk(logits, mode)
    return tree_build(logp, ids, mode, root_token=root)


def generate(target, drafter, prompt, max_tokens, mode, sampling=Sampling(), stop=()):
    """prompt: token ids. Runs rounds while fewer than max_tokens tokens are committed, not counting
    the pending bonus; stops after the round in which a stop token appears."""
    run = Run()
    n = len(prompt)
    logits, cache, hidden = target_model.forward(
        target, prompt, np.arange(n), target_model.empty_cache(target)
    )
    run.prompt_logits = logits[-1].astype(np.float32)
    ctx = (
        None
        if mode == "plain"
        else dflash.context_kv(drafter, dflash.features(drafter, hidden), np.arange(n))
    )
    # The first token is what a root alone accepts.
    _, bonus, draws = tree_accept_logits(chain([]), logits[-1:].astype(np.float32), n - 1, sampling)
    committed = []
    while len(committed) < max_tokens and not set(stop) & {*committed, bonus}:
        start = cache.shape[1]
        tree = draft_tree(target, drafter, bonus, ctx, mode)
        positions = ancestors.positions(tree.depth, start)
        visible = np.concatenate(
            [np.ones((tree.n_nodes, start), bool), ancestors.visibility(tree.parent)], axis=1
        )
        logits, new_kv, hidden = target_model.forward(target, tree.token, positions, cache, visible)
        path, following, more = tree_accept_logits(tree, logits.astype(np.float32), start, sampling)
        draws += more
        cache = np.concatenate([cache, new_kv[:, path]], axis=1)
        if ctx is not None:
            added = dflash.context_kv(
                drafter, dflash.features(drafter, hidden[:, path]), positions[path]
            )
            ctx = tuple(np.concatenate(pair, axis=1) for pair in zip(ctx, added))
        committed += tree.token[path].tolist()
        run.acceptance.append(len(path))
        run.trees.append(tree)
        run.accepted.append(path)
        bonus = following
    run.tokens = truncate([*committed, bonus], max_tokens, stop)
    run.margin = min(draw.margin for draw in draws)
    run.filter_margin = min(draw.filter_margin for draw in draws)
    return run


def truncate(tokens, max_tokens, stop):
    """Drops what follows a stop token or max_tokens."""
    tokens = tokens[:max_tokens]
    ends = [i for i, token in enumerate(tokens) if token in stop]
    return tokens[: ends[0] + 1] if ends else tokens
