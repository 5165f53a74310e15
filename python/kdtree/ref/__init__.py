"""Readable numpy references, one file per algorithm: the ground truth of every backend.

They import numpy only, never the engine, so they can disagree with it.
"""
