"""Makes `python/` the import root, so that `python -m pytest python/tests` works from anywhere."""
import os
import pathlib
import sys

# Before anyone imports numpy: the matrices of the tests are small, and BLAS threads that wait for
# each other on a busy machine cost several times what they save.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
