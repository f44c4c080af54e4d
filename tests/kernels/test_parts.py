"""Parts of the samples on several threads: in order, and the same bits on any number of cores."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from unittest import mock

import numpy as np
import pytest

from tinybn import kernels
from tinybn.kernels.reference import batch_norm, conv, parts
from tinybn.kernels.windows import windows


@contextlib.contextmanager
def on_cores(cores):
    parts._forget_pool()  # which has as many threads as it was made for
    with mock.patch.object(parts, "_cores", lambda: cores):
        yield
    parts._forget_pool()


@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize("samples", [0, 1, 2, 7, 50])
def test_results_are_in_order_and_of_every_part(cores, samples):
    with on_cores(cores):
        got = parts.on_all_cores(lambda part: part, parts.in_parts(samples, 3))
    assert [i for part in got for i in range(samples)[part]] == list(range(samples))
    assert all(1 <= part.stop - part.start <= 3 for part in got)


def test_parts_run_at_once():
    both = threading.Barrier(2, timeout=60)
    with on_cores(2):
        parts.on_all_cores(lambda part: both.wait(), parts.in_parts(2, 1))


@pytest.mark.parametrize("cores", [1, 2])
def test_an_error_in_a_part_is_raised(cores):
    def work(part):
        raise ValueError(f"in {part.start}")

    with on_cores(cores), pytest.raises(ValueError, match="in "):
        parts.on_all_cores(work, parts.in_parts(4, 1))


@pytest.mark.parametrize("fails_first", [True, False])
def test_after_an_error_nothing_goes_on(fails_first):
    """In the caller's thread or in another: who gets the error may reuse the outputs."""
    caller, both = threading.get_ident(), threading.Barrier(2, timeout=60)
    running, begun = set(), []

    def work(part):
        begun.append(part.start)
        if len(begun) <= 2:
            both.wait()  # each thread has a part
        if (threading.get_ident() == caller) == fails_first:
            raise ValueError
        running.add(part.start)
        time.sleep(0.05)
        running.discard(part.start)

    with on_cores(2), pytest.raises(ValueError):
        parts.on_all_cores(work, parts.in_parts(50, 1))
    assert not running
    count = len(begun)
    time.sleep(0.1)
    assert len(begun) == count <= 4


def test_nobody_waits_for_threads_that_others_keep_busy():
    busy, free = threading.Event(), threading.Event()

    def slow(part):
        busy.set()
        assert free.wait(60)

    with on_cores(2):
        other = threading.Thread(
            target=parts.on_all_cores, args=(slow, parts.in_parts(2, 1)), daemon=True
        )
        other.start()
        assert busy.wait(60)
        done = parts.on_all_cores(lambda part: part.start, parts.in_parts(3, 1))
        assert other.is_alive() and done == [0, 1, 2]
        free.set()
        other.join()


def test_work_goes_on_after_the_main_thread_has_ended():
    """Python then starts no threads for executors."""
    code = """
import threading
import numpy as np
from tinybn.kernels.reference import parts
parts._cores = lambda: 2
main = threading.main_thread()
def late():
    main.join()
    print(parts.on_all_cores(lambda part: part.start, parts.in_parts(3, 1)))
threading.Thread(target=late).start()
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ("[0, 1, 2]\n", "")


@pytest.mark.filterwarnings("error")
def test_no_thread_warns():
    with on_cores(2):
        parts.on_all_cores(lambda part: np.ones(2) / np.zeros(2), parts.in_parts(8, 1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    def run():
        with on_cores(2):
            return parts.on_all_cores(lambda part: part.start, parts.in_parts(4, 1))

    want = run()
    child = os.fork()
    if not child:
        os._exit(run() != want)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_same_bits_on_any_number_of_cores():
    rng = np.random.default_rng(0)
    x, dy = (rng.normal(3, 2, (9, 4, 6, 5)).astype(np.float32) for _ in range(2))

    def run():
        y, statistics, sign = kernels.batch_norm_forward(x, activation="relu")
        passing = kernels.Passing(None, None, sign, "relu")
        needs = (True, True, True, False)
        return y, *kernels.batch_norm_gradients(dy, x, None, statistics, passing, needs)[:3]

    with mock.patch.object(batch_norm, "PART_BYTES", 2000):
        for cores in (2, 3):
            with on_cores(1):
                want = run()
            with on_cores(cores):
                got = run()
            for a, b in zip(got, want):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("few", [1, 2**30])
def test_infinity_beside_the_padding_reaches_only_the_taps_that_lie_on_it(few):
    # The element 0, 0 lies under no window's last row or column of taps.
    slid = windows(3, 1, 1, 1)
    x, dy = np.ones((2, 1, 4, 4), np.float32), np.ones((2, 1, 4, 4), np.float32)
    x[0, 0, 0, 0] = np.inf
    with mock.patch.object(conv, "PART_BYTES", few):
        dweight = kernels.conv2d_backward_weight(dy, x, (1, 1, 3, 3), windows=slid)[0, 0]
        weight = np.ones((1, 1, 3, 3), np.float32)
        weight[0, 0, 2, 2] = np.inf
        dx = kernels.conv2d_backward_input(dy, weight, x.shape, windows=slid)[0, 0]
    assert np.isinf(dweight).tolist() == [[True, True, False]] * 2 + [[False] * 3]
    # Windows' last tap lies on all but the first row and column.
    inside = np.ones((4, 4), bool)
    inside[0] = inside[:, 0] = False
    assert np.isinf(dx).tolist() == inside.tolist() and not np.isnan(dx).any()
