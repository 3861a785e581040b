"""Uniform numbers by counter: which one a position gets depends on nothing that came before.

So an output is the same whatever is drafted, verified in one pass or shares a batch.
"""

import struct
from hashlib import blake2b
from typing import Literal

__all__ = ["Stream", "uniform"]

Stream = Literal["token", "accept", "draft"]
"""What a number decides: a token of the output, whether a draft is accepted, a draft. Each has its own numbers."""


def uniform(seed: int, stream: Stream, position: int, draw: int = 0) -> float:
    """The number in [0, 1) of a seed, a stream, an output position and a draw there: a hash of the four."""
    counter = struct.pack("<QQQ", seed, position, draw)
    digest = blake2b(counter, digest_size=8, person=stream.encode()).digest()
    return float(int.from_bytes(digest, "little") >> 11) * 2.0**-53
