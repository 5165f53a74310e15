"""Which generators exist. A module may hold several small ops."""

from kdtree.golden import (
    dflash,
    draft_topk,
    elementwise,
    generate,
    kv_commit,
    linear,
    lse_merge,
    mla_absorb,
    moe,
    tree_accept,
    tree_build,
    verify_attention,
)

_ALL = (
    dflash,
    draft_topk,
    elementwise,
    generate,
    kv_commit,
    linear,
    lse_merge,
    mla_absorb,
    moe,
    tree_accept,
    tree_build,
    verify_attention,
)
MODULES = {module.__name__.rsplit(".", 1)[-1]: module for module in _ALL}


def all_cases(ops=None, large=False):
    """The cases of the named modules (default: all); with `large` also those too big to commit."""
    for op in MODULES if not ops else ops:
        yield from MODULES[op].cases()
        if large and hasattr(MODULES[op], "large_cases"):
            yield from MODULES[op].large_cases()
