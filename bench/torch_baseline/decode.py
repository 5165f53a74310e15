"""Greedy decoding three ways: plain, DFlash chain, DDTree. Batch 1, one host thread."""

import time
from dataclasses import dataclass, field

import torch

from torch_baseline.tree import build_tree

MASKED = torch.finfo(torch.float32).min


@dataclass
class Result:
    """What one prompt gave. token_ids end at a stop token (included) or at max_tokens."""

    token_ids: list
    acceptance: list = field(default_factory=list)  # per round, root counted, not truncated
    trees: list = field(default_factory=list)  # (Tree, accepted node ids), when asked for
    decode_s: float = 0.0  # from the first token, which prefill gives, to the last


def truncate(tokens, stop, max_tokens):
    """tokens up to and with the first stop token, at most max_tokens."""
    for i, token in enumerate(tokens[:max_tokens]):
        if token in stop:
            return tokens[: i + 1]
    return tokens[:max_tokens]


def prefill(target, drafter, prompt):
    """Runs the prompt; returns the first generated token."""
    target.reset()
    logits, features = target.forward(torch.tensor(prompt), last_only=True)
    if drafter is not None:
        drafter.extend(features, 0)
    return int(logits[-1].argmax())


@torch.inference_mode()
def plain(target, prompt, stop, max_tokens):
    """One token per forward."""
    token = prefill(target, None, prompt)
    begin = time.perf_counter()
    tokens = [token]
    while token not in stop and len(tokens) < max_tokens:
        logits, _ = target.forward(torch.tensor([token]), last_only=True)
        token = int(logits[-1].argmax())
        tokens.append(token)
    return Result(tokens, [1] * len(tokens), decode_s=time.perf_counter() - begin)


def chain_round(target, drafter, root, start, _budget):
    """Drafts a chain and verifies it. Returns (accepted tokens, rows, bonus, features, tree)."""
    draft = drafter.draft(root, start).argmax(dim=-1)
    ids = torch.cat((torch.tensor([root]), draft))
    logits, features = target.forward(ids)
    answers, drafted = logits.argmax(dim=-1).tolist(), draft.tolist()
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == answers[accepted]:
        accepted += 1
    rows = list(range(accepted + 1))
    return [root, *drafted[:accepted]], rows, answers[accepted], features, None


def tree_round(target, drafter, root, start, budget):
    """Drafts a tree and verifies it; same return value as chain_round."""
    tree = build_tree(drafter.draft(root, start), budget)
    size = len(tree.parents)
    mask = torch.zeros(size, start + size)
    mask[:, start:].masked_fill_(~torch.from_numpy(tree.visible()), MASKED)
    ids = torch.tensor([root, *tree.tokens])
    logits, features = target.forward(ids, start + torch.tensor([0, *tree.depths]), mask)
    answers = logits.argmax(dim=-1).tolist()
    rows, tokens = [0], [root]
    while (child := tree.children[rows[-1]].get(answers[rows[-1]])) is not None:
        tokens.append(answers[rows[-1]])
        rows.append(child)
    return tokens, rows, answers[rows[-1]], features, tree


@torch.inference_mode()
def speculative(target, drafter, prompt, stop, max_tokens, budget=None, keep_trees=0):
    """DDTree with `budget` nodes, or the DFlash chain when budget is None."""
    one_round = chain_round if budget is None else tree_round
    root = prefill(target, drafter, prompt)
    begin = time.perf_counter()
    start, tokens = len(prompt), []
    result = Result([])
    ended = root in stop
    while not ended and len(tokens) < max_tokens:
        accepted, rows, root, features, tree = one_round(target, drafter, root, start, budget)
        target.keep(start, rows)
        contiguous = rows[-1] == len(rows) - 1
        drafter.extend(features[: len(rows)] if contiguous else features[rows], start)
        start += len(rows)
        tokens += accepted
        result.acceptance.append(len(rows))
        if len(result.trees) < keep_trees:
            result.trees.append((tree, rows))
        ended = root in stop or any(token in stop for token in accepted)
    result.token_ids = truncate([*tokens, root], stop, max_tokens)
    result.decode_s = time.perf_counter() - begin
    return result
