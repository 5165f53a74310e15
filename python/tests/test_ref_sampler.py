"""Philox against the published vectors; the sampler against its distribution and its rules."""

import numpy as np
import pytest

from kdtree.ref import philox, sampler, tree_build
from kdtree.ref.sampler import Sampling, kept_tokens, sample_token, uniforms
from kdtree.ref.tree_accept import tree_accept_logits

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    "counter, key, expected",
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, expected):
    assert tuple(int(x) for x in philox.philox4x32(counter, key)) == expected


def test_uniforms_take_lane_and_block_from_the_id():
    seed, position = 0x1234567890ABCDEF, 77
    u = uniforms(seed, position, np.arange(9))
    for token in range(9):
        lanes = philox.philox4x32((position, token // 4, 0, 0), (0x90ABCDEF, 0x12345678))
        assert u[token] == (int(lanes[token % 4]) + 0.5) / 2**32
    assert (uniforms(seed, position, [8, 3]) == u[[8, 3]]).all()


def softmax(x):
    p = np.exp(x - x.max())
    return p / p.sum()


@pytest.mark.parametrize(
    "sampling, kept",
    [
        (Sampling(1.0), [0, 1, 2, 3, 4, 5]),
        (Sampling(0.7, top_k=3), [0, 1, 2]),
        (Sampling(1.0, top_p=0.8), [0, 1, 2]),
        (Sampling(1.3, top_k=4, top_p=0.9, min_p=0.4), [0, 1]),
    ],
)
def test_draws_follow_the_filtered_softmax(sampling, kept):
    logits = np.array([1.0, 2.5, 2.0, 0.5, 0.0, -1.0], np.float32)[[1, 2, 0, 3, 4, 5]]
    ids, _ = kept_tokens(logits, sampling)
    assert ids.tolist() == kept
    expected = softmax(logits[kept].astype(np.float64) / np.float32(sampling.temperature))
    n = 4000
    counts = np.zeros(len(logits))
    for position in range(n):
        sampling.seed = 1000 + position % 7
        counts[sample_token(logits, position, sampling).token] += 1
    assert counts.sum() == counts[kept].sum() == n
    chi_square = ((counts[kept] - n * expected) ** 2 / (n * expected)).sum()
    # The 1 - 1e-4 quantiles of chi-square with 1 .. 5 degrees of freedom.
    assert chi_square < {1: 15.2, 2: 18.5, 3: 21.2, 5: 25.8}[len(kept) - 1]


def test_filters_keep_the_token_that_crosses_and_always_one():
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125])).astype(np.float32)
    assert kept_tokens(logits, Sampling(1.0, top_p=0.6))[0].tolist() == [0, 1]
    assert kept_tokens(logits, Sampling(1.0, top_p=1e-9))[0].tolist() == [0]
    assert kept_tokens(logits, Sampling(1.0, top_k=3))[0].tolist() == [0, 1, 2]  # tie to lower id
    # After top-k 2 the first token holds 2/3 of what is left, so top-p 0.6 keeps it alone.
    assert kept_tokens(logits, Sampling(1.0, top_k=2, top_p=0.6))[0].tolist() == [0]
    assert kept_tokens(logits, Sampling(1.0, min_p=0.4))[0].tolist() == [0, 1]
    ids, margin = kept_tokens(logits, Sampling(1.0, top_p=0.7500001))
    assert ids.tolist() == [0, 1, 2] and margin < 1e-6


def test_a_tied_draw_goes_to_the_lower_id(monkeypatch):
    monkeypatch.setattr(sampler, "uniforms", lambda seed, position, ids: np.full(len(ids), 0.5))
    draw = sample_token([0, 2, 1, 2], 0, Sampling(1.0))
    assert draw.token == 1 and draw.margin == 0


def test_greedy_ties_masks_and_bad_rows():
    assert sample_token([1, 3, 3, -np.inf], 0, Sampling()).token == 1
    draw = sample_token([-np.inf, 2, -np.inf], 5, Sampling(1.0))
    assert draw.token == 1 and draw.margin == np.inf
    for bad in ([np.nan, 1], [np.inf, 1], [-np.inf, -np.inf]):
        with pytest.raises(ValueError):
            sample_token(bad, 0, Sampling(1.0))


def test_tokens_do_not_depend_on_the_tree():
    """Speculative runs emit the tokens of plain decoding: a toy target whose logits depend on the
    last two tokens, drafted by random trees."""
    rng = np.random.default_rng(11)
    table = rng.normal(size=(6, 6, 6)).astype(np.float32) * 2
    sampling = Sampling(0.9, top_p=0.95, seed=42)
    plain = [0, 1]
    while len(plain) < 60:
        plain.append(sample_token(table[plain[-2], plain[-1]], len(plain), sampling).token)
    for budget in (1, 7, 40):
        tokens = [0, 1]
        while len(tokens) < 60:
            logp = np.sort(rng.normal(size=(4, 6)).astype(np.float32))[:, ::-1]
            ids = np.argsort(rng.normal(size=(4, 6)), axis=1).astype(np.int32)
            tree = tree_build.tree_build(logp, ids, budget, root_token=tokens[-1])
            logits = np.empty((tree.n_nodes, 6), np.float32)
            for i in range(tree.n_nodes):
                before = tokens[-2] if i == 0 else tree.token[tree.parent[i]]
                logits[i] = table[before, tree.token[i]]
            path, bonus, _ = tree_accept_logits(tree, logits, len(tokens) - 1, sampling)
            tokens += [int(tree.token[i]) for i in path[1:]] + [bonus]
        assert tokens[:60] == plain
