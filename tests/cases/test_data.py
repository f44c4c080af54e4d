"""Loaders: the last batch.

A case id stands for a small input behind public reports against other frameworks, which are named
beside it; see the package's docstring.
"""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tests.cases.rows import F, case
from tinybn import nn

LAST = "pytorch/pytorch#7716, fastai/fastai#1095, chemprop/chemprop#680"


def pair(samples):
    return F((samples, 3), 7, 3, 16, 4, -1.5), np.arange(samples) % 2


@pytest.mark.parametrize(
    ("samples", "batch_size", "drop_last", "sizes"),
    [
        case("BN-57", LAST, 5, 2, False, [2, 2, 1]),
        case("BN-57", LAST, 5, 2, True, [2, 2]),
        case("BN-57", LAST, 4, 2, True, [2, 2]),
        case("BN-57", LAST, 2, 3, False, [2]),
    ],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_last_batch(engine, samples, batch_size, drop_last, sizes, shuffle):
    loader = tb.data.DataLoader(pair(samples), batch_size, shuffle, drop_last=drop_last)
    layer = nn.BatchNorm1d(3)
    for _ in range(2):
        batches = list(loader)
        assert [len(x) for x, _ in batches] == [len(t) for _, t in batches] == sizes
        assert len(loader) == len(sizes)
    for x, _ in batches:
        if len(x) > 1:
            layer(x)
        else:
            with pytest.raises(ValueError, match="more than one"):
                layer(x)
