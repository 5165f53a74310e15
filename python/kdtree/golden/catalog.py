"""Which generators exist."""
from kdtree.golden import draft_topk, tree_build

MODULES = {module.__name__.rsplit(".", 1)[-1]: module for module in (draft_topk, tree_build)}


def all_cases(ops=None):
    """Every case of the named ops (default: all), committed or not."""
    for op in MODULES if not ops else ops:
        yield from MODULES[op].cases()
