"""Attention references against the unabsorbed textbook form, splits and limits."""

import numpy as np
import pytest

from kdtree.ref import ancestors
from kdtree.ref.kv_commit import kv_commit
from kdtree.ref.lse_merge import lse_merge
from kdtree.ref.tree_build import tree_build
from kdtree.ref.verify_attention import gather_pages, masked_attention, verify_attention


def random_tree(rng, n):
    logp = np.sort(rng.normal(size=(5, n)).astype(np.float32))[:, ::-1]
    return tree_build(logp, np.tile(np.arange(n, dtype=np.int32), (5, 1)), n - 1)


def paged(rng, prefix, width):
    n_pages = prefix // 64 + 3
    pages = rng.normal(size=(n_pages, 64, width))
    return pages, rng.permutation(n_pages).astype(np.int32)


def textbook(query, keys, scale, latent):
    """One row, one head, a list of visible keys: softmax with no tricks."""
    weights = np.exp(scale * np.array([query @ key for key in keys]))
    return sum(w * key[:latent] for w, key in zip(weights, keys)) / weights.sum(), np.log(
        weights.sum()
    )


@pytest.mark.parametrize("prefix", [0, 1, 63, 64, 65, 130])
def test_rows_see_prefix_and_ancestors_only(prefix):
    rng = np.random.default_rng(prefix)
    tree = random_tree(rng, 12)
    pages, table = paged(rng, prefix, 24)
    query, tail = rng.normal(size=(12, 3, 24)), rng.normal(size=(12, 24))
    words = ancestors.ancestor_words(tree.parent)
    out, lse = verify_attention(query, pages, table, prefix, tail, 0.3, words, n_latent=16)
    for i in range(12):
        keys = [pages[table[p // 64], p % 64] for p in range(prefix)]
        node = i
        while node >= 0:
            keys.append(tail[node])
            node = tree.parent[node]
        for h in range(3):
            expected, expected_lse = textbook(query[i, h], keys, 0.3, 16)
            np.testing.assert_allclose(out[i, h], expected, rtol=1e-11, atol=1e-13)
            assert lse[i, h] == pytest.approx(expected_lse, abs=1e-12)


def test_a_branch_equals_its_path_decoded_alone():
    rng = np.random.default_rng(1)
    tree = random_tree(rng, 20)
    pages, table = paged(rng, 70, 24)
    query, tail = rng.normal(size=(20, 2, 24)), rng.normal(size=(20, 24))
    words = ancestors.ancestor_words(tree.parent)
    out, lse = verify_attention(query, pages, table, 70, tail, 0.3, words, n_latent=16)
    for i in range(20):
        path = np.flatnonzero(ancestors.visibility(tree.parent)[i])
        alone, alone_lse = verify_attention(
            query[path], pages, table, 70, tail[path], 0.3, None, 16
        )
        np.testing.assert_allclose(out[i], alone[-1], rtol=1e-12)
        np.testing.assert_allclose(lse[i], alone_lse[-1], rtol=1e-13)


def test_absorbed_equals_unabsorbed():
    """Per-head keys and values rebuilt from the latent, as in the DeepSeek-V2 equations."""
    rng = np.random.default_rng(2)
    heads, nope, rope, value, latent, n = 3, 8, 4, 6, 16, 9
    w_uk, w_uv = rng.normal(size=(heads, nope, latent)), rng.normal(size=(heads, value, latent))
    c, k_pe = rng.normal(size=(n, latent)), rng.normal(size=(n, rope))
    q_nope, q_pe = rng.normal(size=(n, heads, nope)), rng.normal(size=(n, heads, rope))
    query = np.concatenate([np.einsum("nhd,hdl->nhl", q_nope, w_uk), q_pe], axis=-1)
    out, _ = masked_attention(
        query, np.concatenate([c, k_pe], axis=-1), np.tri(n, dtype=bool), 0.2, latent
    )
    for h in range(heads):
        keys, v = np.concatenate([c @ w_uk[h].T, k_pe], axis=-1), c @ w_uv[h].T
        q = np.concatenate([q_nope[:, h], q_pe[:, h]], axis=-1)
        for i in range(n):
            weights = np.exp(0.2 * (keys[: i + 1] @ q[i]))
            np.testing.assert_allclose(
                out[i, h] @ w_uv[h].T, weights @ v[: i + 1] / weights.sum(), rtol=1e-10
            )


def test_empty_rows_and_large_scores():
    keys = np.array([[800.0, 1.0], [-800.0, 2.0], [0.0, 3.0]])
    query = np.ones((2, 1, 2))
    visible = np.array([[False] * 3, [True] * 3])
    out, lse = masked_attention(query, keys, visible, 1.0, 1)
    assert out[0, 0, 0] == 0 and np.isneginf(lse[0, 0])
    assert out[1, 0, 0] == 800 and lse[1, 0] == 801
    out, lse = masked_attention(query, keys[:0], visible[:, :0], 1.0, 1)
    assert (out == 0).all() and np.isneginf(lse).all()


@pytest.mark.parametrize("split", [0, 1, 40, 63, 80])
def test_merge_of_any_split_is_the_whole(split):
    rng = np.random.default_rng(split)
    query, keys = rng.normal(size=(4, 2, 24)) * 6, rng.normal(size=(80, 24))
    visible = rng.random((4, 80)) < 0.5
    visible[0, :split] = False
    whole = masked_attention(query, keys, visible, 0.5, 16)
    parts = [
        masked_attention(query, keys[part], visible[:, part], 0.5, 16)
        for part in (slice(0, split), slice(split, None))
    ]
    out, lse = lse_merge(*parts[0], *parts[1])
    np.testing.assert_allclose(out, whole[0], rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(lse, whole[1], rtol=1e-13)


def test_merge_ignores_what_an_empty_side_holds():
    nothing, poison = np.array([-np.inf]), np.full((1, 3), np.nan)
    out, lse = lse_merge(poison, nothing, np.ones((1, 3)), np.array([2.0]))
    assert (out == 1).all() and lse[0] == 2
    out, lse = lse_merge(poison, nothing, poison, nothing)
    assert (out == 0).all() and np.isneginf(lse[0])


def test_commit_moves_accepted_rows_and_nothing_else():
    rng = np.random.default_rng(3)
    pages, tail = rng.normal(size=(2, 5, 64, 4)), rng.normal(size=(2, 9, 4))
    table, accepted, start = np.array([3, 0, 4]), [0, 2, 7], 126
    after = kv_commit(pages, table, tail, accepted, start)
    for layer in range(2):
        rows = gather_pages(after[layer], table, 129)
        assert (rows[126:] == tail[layer, accepted]).all()
        assert (rows[:126] == gather_pages(pages[layer], table, 126)).all()
    assert (after != pages).any(axis=-1).sum() == 2 * 3
