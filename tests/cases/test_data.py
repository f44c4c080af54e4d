"""Loaders: the last batch.

A case id stands for a small input behind public reports against other frameworks, which are named
beside it; see the package's docstring.
"""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tests.cases.rows import F, array, assert_same, case
from tinybn import nn
from tinybn.errors import TinyBNError

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


def trainer():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = nn.optim.SGD(model.parameters(), lr=0.1)
    return model, nn.Trainer(model, optimizer, progress=False)


@pytest.mark.parametrize(
    "samples",
    [
        case("DA-01", "karpathy/makemore#22, FluxML/Flux.jl#1992, open-edge-platform/geti#1872",
             33),
    ],
)  # fmt: skip
def test_a_last_batch_of_one_is_refused_before_any_step(engine, samples):
    model, fitting = trainer()
    before = {name: array(tensor).copy() for name, tensor in model.state_dict().items()}
    with pytest.raises(TinyBNError, match="drop_last"):
        fitting.fit(tb.data.DataLoader(pair(samples), 32), 1)
    for name, tensor in model.state_dict().items():
        assert_same(tensor, before[name])
    fitting.fit(tb.data.DataLoader(pair(samples), 32, drop_last=True), 1)
    assert model[1].num_batches_tracked.item() == 1


@pytest.mark.parametrize("samples", [case("DA-02", "RasmussenLab/vamb#425", 20)])
def test_fewer_samples_than_a_batch_with_drop_last(engine, samples):
    model, fitting = trainer()
    with pytest.raises(TinyBNError, match="no batch"):
        fitting.fit(tb.data.DataLoader(pair(samples), 32, drop_last=True), 1)
    assert model[1].num_batches_tracked.item() == 0
