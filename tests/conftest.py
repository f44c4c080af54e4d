"""What all tests share: GPU tests skip by themselves, new tensors go to the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest

from tinybn.kernels import gpu

# The same cases in every run, so that a red run means a change, not luck.
hypothesis.settings.register_profile(
    "tinybn", deadline=None, derandomize=True, print_blob=True, max_examples=25
)
hypothesis.settings.register_profile("thorough", parent=hypothesis.settings.get_profile("tinybn"),
                                     derandomize=False, max_examples=1000)  # fmt: skip
hypothesis.settings.load_profile(os.environ.get("TINYBN_HYPOTHESIS", "tinybn"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = gpu.why_unavailable()
    if reason is None:
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {reason}"))


@pytest.fixture(autouse=True)
def _stream_of_its_own(request: pytest.FixtureRequest) -> Iterator[None]:
    """With TINYBN_TEST_STREAM=1 each GPU test works on a stream that waits for no other."""
    if "gpu" not in request.keywords or os.environ.get("TINYBN_TEST_STREAM") != "1":
        yield
        return
    import cupy

    with cupy.cuda.Stream(non_blocking=True):
        yield


@pytest.fixture(autouse=True)
def _cpu_by_default() -> Iterator[None]:
    from tinybn.tensor.device import set_default_device

    set_default_device("cpu")
    yield
    set_default_device(None)
