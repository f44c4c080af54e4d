"""Random words, and dropout."""

from __future__ import annotations

import numpy as np

from ..arrays import accumulation_dtype

Array = np.ndarray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def philox(out: Array, *, seed: int, offset: int, stream: int) -> None:
    """Philox-4x32-10 random words (Salmon et al. 2011, doi:10.1145/2063384.2063405).

    Element i of ``out`` (uint32, flat) is word i % 4 of the block with counter
    (low and high half of offset + i // 4, stream, 0) and key ``seed``.
    """
    blocks = -(-out.size // 4)
    index = np.arange(blocks, dtype=np.uint64) + np.uint64(offset)
    counter = [index & _LOW, index >> _32, np.full_like(index, stream), np.zeros_like(index)]
    key = [np.uint64(seed) & _LOW, np.uint64(seed) >> _32]
    for _ in range(10):
        product = [_MULTIPLIERS[0] * counter[0], _MULTIPLIERS[1] * counter[2]]
        counter = [
            (product[1] >> _32) ^ counter[1] ^ key[0],
            product[1] & _LOW,
            (product[0] >> _32) ^ counter[3] ^ key[1],
            product[0] & _LOW,
        ]
        key = [(key[0] + _KEY_STEPS[0]) & _LOW, (key[1] + _KEY_STEPS[1]) & _LOW]
    out[...] = np.stack(counter, axis=1).astype(np.uint32).reshape(-1)[: out.size]


def dropout(x: Array, y: Array, *, p: float, seed: int, offset: int) -> None:
    """y = x/(1 − p) with probability 1 − p, else 0 (Srivastava et al. 2014, JMLR 15:1929).

    Element i is kept where its Philox word, as a number in [0, 1) of 24 bits, is at least p.
    The same call on a gradient is the backward.
    """
    words = np.empty(x.size, np.uint32)
    philox(words, seed=seed, offset=offset, stream=0)
    kept = ((words >> np.uint32(8)) * 2.0**-24 >= p).reshape(x.shape)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    y[...] = np.where(kept, x.astype(accumulation_dtype(x.dtype)) * scale, 0)
