"""The engines on which a case runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines import CPU, CUDA, INTERPRET, Engine
from tinybn.tensor.device import set_default_device


@pytest.fixture(
    params=[
        pytest.param(CPU, id="cpu"),
        pytest.param(INTERPRET, id="interpret"),
        pytest.param(CUDA, id="cuda", marks=pytest.mark.gpu),
    ]
)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine that is on for the whole test, with new tensors and layers where it computes."""
    chosen: Engine = request.param
    set_default_device("cuda" if chosen is CUDA else "cpu")
    with chosen.active():
        yield chosen
