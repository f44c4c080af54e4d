"""Every program in examples/ runs, and its results are right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tinybn as tb
from examples import batchnorm_steps as steps

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(p.stem for p in (ROOT / "examples").glob("*.py") if p.stem != "__init__")


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_runs(name):
    command = [sys.executable, "-m", f"examples.{name}"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)


@pytest.mark.parametrize("step", steps.STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("shape", [(37, 5), (64, 33), (2, 1), (9, 3, 5, 5), (70, 2, 8, 8)])
def test_batchnorm_step(step, shape):
    x = steps.draw(shape, 0.5)
    one, zero = np.ones(shape[1], np.float32), np.zeros(shape[1], np.float32)
    with tb.interpret():
        y, scaled = step(x, one, zero), step(x, 3 * one, one)
    # Sums of n terms err by n·ε of their size, which is that of a deviation here; where n = 2 the
    # deviation may be a hundredth of the values.
    bound = max(x.size // shape[1], 300) * np.finfo(np.float32).eps
    assert steps.error(y, x) < bound
    np.testing.assert_allclose(scaled, 3 * y + 1, rtol=0, atol=1e-5)


def test_only_the_first_step_loses_the_variance_of_a_large_mean():
    x = steps.draw((256, 4), 1e3, 1e-1)
    one, zero = np.ones(4, np.float32), np.zeros(4, np.float32)
    with tb.interpret():
        errors = [steps.error(step(x, one, zero), x) for step in steps.STEPS]
    # ε·mean² = 0.1 is ten times the variance of 0.01; ε·mean is a thousandth of the deviation.
    assert not errors[0] < 0.1 and max(errors[1:]) < 0.01  # NaN where it came out negative
