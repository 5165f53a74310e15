"""Which generators exist."""
from kdtree.golden import (draft_topk, kv_commit, lse_merge, tree_accept, tree_build,
                           verify_attention)

_ALL = (draft_topk, kv_commit, lse_merge, tree_accept, tree_build, verify_attention)
MODULES = {module.__name__.rsplit(".", 1)[-1]: module for module in _ALL}


def all_cases(ops=None, large=False):
    """The cases of the named ops (default: all); with `large` also those too big for the repository."""
    for op in MODULES if not ops else ops:
        yield from MODULES[op].cases()
        if large and hasattr(MODULES[op], "large_cases"):
            yield from MODULES[op].large_cases()
