"""Moves the KV rows of the accepted path from the tree tail into the paged cache, all layers.

The tail is outside the cache, so rejected rows leave no trace and no move can overwrite a source.
"""

import numpy as np

from .verify_attention import PAGE_TOKENS


def kv_commit(pages, block_table, tail, accepted, start):
    """pages [layers, n_pages, 64, D]; block_table int32; tail [layers, N, D], slot = node id;
    accepted [a] = node ids root .. deepest accepted; start = the root's position.

    Returns a copy of pages in which positions start .. start + a - 1 hold the accepted rows.
    """
    pages = pages.copy()
    position = start + np.arange(len(accepted))
    page = np.asarray(block_table)[position // PAGE_TOKENS]
    pages[:, page, position % PAGE_TOKENS] = tail[:, np.asarray(accepted, np.int64)]
    return pages


def gather_features(features, accepted, row_offset=0):
    """features [n, R, hidden] of the captured layers; accepted [a] node ids of the request whose
    rows start at row_offset -> [a, n * hidden]: the drafter's features of the accepted rows."""
    rows = features[:, row_offset + np.asarray(accepted, np.int64)]
    return rows.swapaxes(0, 1).reshape(len(accepted), features.shape[0] * features.shape[2])
