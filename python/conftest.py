"""Makes `python/` the import root, so that `python -m pytest python/tests` works from anywhere."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
