"""Philox4x32-10, the counter-based generator behind every random number of the engine.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011);
known-answer vectors from the Random123 distribution.
"""

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counter, key):
    """counter: four uint32 (scalars or arrays that broadcast); key: two uint32 scalars.

    Returns four uint32 arrays of the broadcast shape.
    """
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(c, np.uint64) for c in counter))
    k0, k1 = (int(k) for k in key)
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (p1 >> _HALF) ^ c1 ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> _HALF) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return tuple(c.astype(np.uint32) for c in (c0, c1, c2, c3))


def split64(value):
    """The two uint32 halves of an integer below 2^64, low half first."""
    return int(value) & 0xFFFFFFFF, int(value) >> 32


def stream_u32(seed, count):
    """The first `count` uint32 of the stream of a 64-bit seed: element i is lane i % 4 of the
    block with counter (i // 4, 0, 0, 0). [count]"""
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    lanes = philox4x32((blocks, 0, 0, 0), split64(seed))
    return np.stack(lanes, axis=-1).reshape(-1)[:count]
