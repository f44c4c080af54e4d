"""Switching the recording off and on: statements, contexts, decorators, threads."""

from __future__ import annotations

import threading

import pytest

import tinybn as tb
from tinybn.errors import DTypeError


@pytest.fixture(autouse=True)
def _recording():
    yield
    tb.set_grad_enabled(True)


def test_a_plain_statement_switches_at_once():
    tb.set_grad_enabled(False)
    assert not tb.is_grad_enabled()
    tb.set_grad_enabled(True)
    assert tb.is_grad_enabled()
    with tb.set_grad_enabled(False):
        assert not tb.is_grad_enabled()
    assert tb.is_grad_enabled()
    tb.no_grad()  # makes a context and enters none
    assert tb.is_grad_enabled()


def test_one_context_serves_many_blocks_and_nests():
    ng, eg = tb.no_grad(), tb.enable_grad()
    for _ in range(2):
        with ng:
            with eg:
                with ng:
                    assert not tb.is_grad_enabled()
                assert tb.is_grad_enabled()
            assert not tb.is_grad_enabled()
        assert tb.is_grad_enabled()
    switch = tb.set_grad_enabled(False)
    for before in (False, True):
        tb.set_grad_enabled(before)
        with switch:
            assert not tb.is_grad_enabled()
    assert tb.is_grad_enabled()


def test_decorating_switches_only_inside_the_calls():
    @tb.set_grad_enabled(False)
    def inside():
        """Its text."""
        return tb.is_grad_enabled()

    assert tb.is_grad_enabled()
    assert inside.__name__ == "inside" and inside.__doc__ == "Its text."
    assert inside() is False and tb.is_grad_enabled()

    ng = tb.no_grad()

    @ng
    def down(n):
        return [tb.is_grad_enabled()] + (down(n - 1) if n else [])

    assert down(2) == [False] * 3 and tb.is_grad_enabled()


def test_each_step_of_a_generator_is_inside():
    seen, closed = [], []

    @tb.no_grad()
    def steps():
        try:
            got = yield tb.is_grad_enabled()
            seen.append((got, tb.is_grad_enabled()))
            try:
                yield 2
            except KeyError:
                seen.append(tb.is_grad_enabled())
            yield 3
            return "end"
        finally:
            closed.append(tb.is_grad_enabled())

    run = steps()
    assert next(run) is False and tb.is_grad_enabled()
    assert run.send("a") == 2 and seen == [("a", False)] and tb.is_grad_enabled()
    assert run.throw(KeyError()) == 3 and seen[1] is False
    with pytest.raises(StopIteration) as stop:
        next(run)
    assert stop.value.value == "end" and closed == [False]
    run = steps()
    next(run)
    run.close()
    assert closed == [False, False] and tb.is_grad_enabled()


def test_an_async_function_is_refused():
    with pytest.raises(DTypeError, match="async"):

        @tb.no_grad()
        async def work():
            pass


def test_an_object_shared_by_threads():
    ng, inside, seen = tb.no_grad(), threading.Barrier(2), []

    def work():
        with ng:
            inside.wait(10)  # both are inside at the same time
            seen.append(tb.is_grad_enabled())
        seen.append(tb.is_grad_enabled())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [False, False, True, True] and tb.is_grad_enabled()
