"""Captured steps: replays go on as the steps themselves would, and what cannot be captured says so.

On the CPU a captured step is the step; the rest needs a GPU.
"""

from __future__ import annotations

import gc
import importlib
import itertools

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import ArgumentError, CaptureError
from tinybn.kernels.feed.ring import SLOTS

capture_file = importlib.import_module("tinybn.graph.capture")
optimizer_tables = importlib.import_module("tinybn.kernels.optimizers.objects")._tables
STEPS = 7  # two rehearsals, the recording and replays
BATCH, CLASSES = 33, 10


def mlp(device):
    return nn.models.mlp(49, (32, 17)).to(device)


def cnn(device):
    return nn.models.cnn((5, 8), image=12).to(device)


def with_dropout(device):
    layers = [nn.Flatten(), nn.Linear(49, 33), nn.GELU(), nn.Dropout(0.3), nn.Linear(33, 10)]
    return nn.Sequential(*layers).to(device)


OPTIMIZERS = {
    "sgd": lambda params: nn.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda params: nn.optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True),
    "plain": lambda params: nn.optim.SGD(params, lr=0.05),
    "adam": lambda params: nn.optim.Adam(params, lr=1e-3),
    "adamw": lambda params: nn.optim.AdamW(params, lr=1e-3),
}


def batches(device, shape, dtype=np.float32, count=STEPS):
    rng = np.random.default_rng(0)
    for _ in range(count):
        x = rng.standard_normal((BATCH, *shape)).astype(dtype)
        yield tb.Tensor(x, device=device), tb.Tensor(rng.integers(0, CLASSES, BATCH), device=device)


def training(make, optimizer, captured, device="cuda", schedule=True, shape=(1, 7, 7)):
    """Train a fixed number of steps; all that they leave behind."""
    tb.manual_seed(3)
    model = make(device)
    opt = OPTIMIZERS[optimizer](model.parameters())
    plan = nn.schedule.OneCycleLR(opt, max_lr=0.1, total_steps=2 * STEPS) if schedule else None

    def step(x, y):
        loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if plan is not None:
            plan.step()
        return loss

    run = tb.graph.capture(step) if captured else step
    losses = [run(x, y).detach().numpy().copy() for x, y in batches(device, shape)]
    left = {name: t.numpy() for name, t in model.state_dict().items()}
    left |= {f"{name}.grad": p.grad.numpy() for name, p in model.named_parameters()}
    for number, state in opt.state_dict()["state"].items():
        for name, value in state.items():
            left[f"{number}.{name}"] = value.numpy() if name != "step" else np.array(value)
    left["lr"] = np.array(opt.param_groups[0]["lr"])
    left["random"] = np.array(list(tb.default_generator(device).get_state().values()))
    if captured and device == "cuda":
        assert run.graphs == 1
    return np.stack(losses), left


def assert_same_bits(got, want):
    (losses, left), (wanted_losses, wanted) = got, want
    assert np.array_equal(losses, wanted_losses)
    assert left.keys() == wanted.keys()
    for name in left:
        assert np.array_equal(left[name], wanted[name], equal_nan=True), name


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("make", [mlp, with_dropout])
def test_replays_equal_the_steps_bit_for_bit(make, optimizer):
    schedule = optimizer in ("sgd", "nesterov")  # OneCycle sets a momentum, which Adam calls betas
    runs = [training(make, optimizer, captured, schedule=schedule) for captured in (True, False)]
    assert_same_bits(*runs)


@pytest.mark.gpu
def test_replays_of_a_cnn_equal_the_steps_bit_for_bit():
    runs = [training(cnn, "sgd", captured, shape=(1, 12, 12)) for captured in (True, False)]
    assert_same_bits(*runs)


@pytest.mark.gpu
def test_options_set_by_hand_are_followed():
    results = []
    for captured in (True, False):
        w = nn.Parameter(tb.ones(5, device="cuda"))
        opt = nn.optim.SGD([w], lr=0.1, momentum=0.5)

        def step(x, w=w, opt=opt):
            opt.zero_grad()
            (w * x).sum().backward()
            opt.step()
            return w.detach()

        run = tb.graph.capture(step) if captured else step
        seen = []
        for i in range(12):
            opt.param_groups[0]["lr"] = 0.1 / (i + 1)
            if i == 6:
                opt.param_groups[0]["momentum"] = 0.9
            if i == 8:
                opt.param_groups[0]["weight_decay"] = 0.01  # other arithmetic: recorded anew
            run(tb.full((5,), float(i), device="cuda"))
            seen.append(w.detach().numpy().copy())
        results.append(np.stack(seen))
    assert np.array_equal(*results)


@pytest.mark.gpu
def test_gradients_that_are_kept_add_up():
    results = []
    for captured in (True, False):
        w = nn.Parameter(tb.ones(3, device="cuda"))

        def step(x, w=w):
            loss = (w * w * x).sum()
            loss.backward()
            return loss

        run = tb.graph.capture(step) if captured else step
        seen = []
        for i in range(9):
            if i == 6:
                w.grad = None
            run(tb.full((3,), 0.1 * i, device="cuda"))
            seen.append(w.grad.numpy().copy())
        results.append(np.stack(seen))
    assert np.array_equal(*results)


@pytest.mark.gpu
def test_a_shape_or_a_mode_of_its_own_has_a_graph_of_its_own():
    model = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5)).to("cuda")
    run = tb.graph.capture(model)
    rng = np.random.default_rng(1)
    with tb.no_grad():
        for size, training in itertools.product((4, 9), (True, False)):
            model.train(training)
            for _ in range(5):
                x = tb.Tensor(rng.standard_normal((size, 7)).astype(np.float32), device="cuda")
                twin = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5)).to("cuda")
                twin.load_state_dict(model.state_dict())
                twin.train(training)
                assert np.array_equal(run(x).numpy(), twin(x).numpy())
                for name, value in twin.state_dict().items():
                    assert np.array_equal(value.numpy(), model.state_dict()[name].numpy()), name
    assert run.graphs == 2


@pytest.mark.gpu
def test_autocast_around_a_step_is_followed():
    weight = tb.randn(5, 5, device="cuda")
    run = tb.graph.capture(lambda x: tb.matmul(x, weight))
    x = tb.randn(3, 5, device="cuda")
    for dtype in (tb.bfloat16, tb.float16):
        for _ in range(4):
            with nn.amp.autocast(dtype=dtype):
                assert run(x).dtype == dtype
            assert run(x).dtype == tb.float32
    assert run.graphs == 3


@pytest.mark.gpu
def test_results_in_lists_and_dictionaries():
    run = tb.graph.capture(lambda xs, *, scale: {"sum": xs[0] + xs[1], "rest": [xs[0] * scale]})
    for i in range(5):
        a, b = (tb.full((3,), float(i + j), device="cuda") for j in (0, 1))
        result = run((a, b), scale=2)
        assert np.array_equal(result["sum"].numpy(), [2 * i + 1] * 3)
        assert np.array_equal(result["rest"][0].numpy(), [2 * i] * 3)


@pytest.mark.gpu
def test_a_tensor_given_twice_is_two_arguments():
    run = tb.graph.capture(lambda x, y, *, z: x + 10 * y + 100 * z)
    one, two, three = (tb.full((3,), float(i), device="cuda") for i in (1, 2, 3))
    for x, y, z in ((one, one, one), (one, one, one), (one, one, one), (one, two, three)):
        want = x.numpy() + 10 * y.numpy() + 100 * z.numpy()
        assert np.array_equal(run(x, y, z=z).numpy(), want)


@pytest.mark.gpu
def test_random_numbers_go_on():
    rows = []
    for captured in (True, False):
        tb.manual_seed(5)
        step = lambda x: (tb.rand(1000, device="cuda") + x, tb.randn(9, device="cuda"))  # noqa: E731
        run = tb.graph.capture(step) if captured else step
        rows.append([np.concatenate([t.numpy() for t in run(tb.zeros(1, device="cuda"))])
                     for _ in range(6)])  # fmt: skip
    assert np.array_equal(*rows)
    assert len({row.tobytes() for row in rows[0]}) == 6


def reads_a_number(x):
    return x * x.sum().item()


def branches(x):
    if x.sum() > 0:
        return x
    return -x


def copies_to_the_host(x):
    return x + x.cpu().numpy().sum()


def copies_from_the_host(x):
    return x + tb.Tensor(np.ones(3, np.float32), device="cuda")


def draws_on_the_host(x):
    return x + tb.randint(0, 5, (3,), device="cuda")


def reads_with_cupy(x):
    return x * float(x.data.sum())


def multiplies_batches_with_cublas(x):
    return tb.matmul(x.reshape(3, 1, 1), x.reshape(3, 1, 1))


def prints(x):
    return x if len(repr(x)) else None


@pytest.mark.gpu
@pytest.mark.parametrize(
    "step",
    [reads_a_number, branches, copies_to_the_host, copies_from_the_host, draws_on_the_host,
     reads_with_cupy, multiplies_batches_with_cublas, prints],
)  # fmt: skip
def test_what_cannot_be_captured_names_the_line(step):
    run = tb.graph.capture(step)
    with pytest.raises(CaptureError, match=r"test_capture\.py:\d+, '") as error:
        for _ in range(capture_file.REHEARSALS + 1):
            run(tb.ones(3, device="cuda"))
    line = int(str(error.value).split(".py:")[1].split(",")[0])
    first = step.__code__.co_firstlineno
    assert first < line <= first + 2
    # The device goes on working.
    assert tb.ones(3, device="cuda").sum().item() == 3
    assert np.array_equal(
        tb.graph.capture(lambda x: x + 1)(tb.ones(2, device="cuda")).numpy(), [2, 2]
    )


@pytest.mark.gpu
def test_an_error_of_the_step_is_its_own():
    run = tb.graph.capture(lambda x: x.reshape(7))
    with pytest.raises(ValueError) as error:
        run(tb.ones(3, device="cuda"))
    assert not isinstance(error.value, CaptureError)


@pytest.mark.gpu
def test_too_many_shapes(monkeypatch):
    monkeypatch.setattr(capture_file, "MOST_GRAPHS", 2)
    run = tb.graph.capture(lambda x: x + 1)
    with pytest.raises(CaptureError, match="3 different shapes"):
        for n in range(1, 4):
            for _ in range(capture_file.REHEARSALS + 1):
                run(tb.ones(n, device="cuda"))
    assert run.graphs == 2


@pytest.mark.gpu
def test_memory_goes_with_the_step():
    import cupy

    run = tb.graph.capture(lambda x: x * 2 + 1)
    size = 2**26
    for _ in range(4):
        run(tb.ones(size, device="cuda"))
    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    free, _ = cupy.cuda.runtime.memGetInfo()
    del run
    gc.collect()
    # Half of the two arrays that it has at least: other programs take and free memory too.
    assert cupy.cuda.runtime.memGetInfo()[0] >= free + size * 4


@pytest.mark.gpu
def test_replays_on_another_stream():
    import cupy

    run = tb.graph.capture(lambda x: (x * 2).sum())
    for i in range(8):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            result = run(tb.full((1000,), float(i), device="cuda"))
            stream.synchronize()
            assert result.item() == 2000 * i


@pytest.mark.gpu
def test_a_host_far_ahead_overwrites_nothing():
    """More replays are queued than a ring has slots, before the GPU has come to the first."""
    import cupy

    seen = tb.zeros(3 * SLOTS, device="cuda")
    rate = nn.optim.SGD([nn.Parameter(tb.zeros(1, device="cuda"))], lr=1.0)

    def step(x):
        weight = rate.param_groups[0]["params"][0]
        weight.grad = x
        rate.step()
        return weight

    run = tb.graph.capture(step)
    inputs = [tb.full((1,), float(i % 7), device="cuda") for i in range(3 * SLOTS)]
    busy = cupy.zeros(2**27, np.float32)
    cupy.cuda.Device().synchronize()
    for _ in range(60):
        busy += 1  # some 20 ms of work that all replays wait for
    for number, x in enumerate(inputs):
        rate.param_groups[0]["lr"] = 1.0 + number % 5
        seen.data[number] = run(x).data[0]
    want = -np.cumsum([(1.0 + i % 5) * (i % 7) for i in range(3 * SLOTS)])
    assert np.array_equal(seen.numpy(), want.astype(np.float32))


@pytest.mark.gpu
def test_inputs_of_any_alignment():
    run = tb.graph.capture(lambda x: x + 1)
    values = tb.arange(5000, dtype=tb.float32, device="cuda")
    for start in (0, 1, 2, 3, 4, 5, 0):
        x = values[start : start + 4001]
        assert np.array_equal(run(x).numpy(), np.arange(start, start + 4001) + 1.0)
    assert run.graphs == 1


@pytest.mark.gpu
def test_a_captured_step_in_another_is_a_part_of_it():
    inner = tb.graph.capture(lambda x: x * 2)
    outer = tb.graph.capture(lambda x: inner(x) + 1)
    for i in range(STEPS):
        assert outer(tb.full((3,), float(i), device="cuda")).tolist() == [2.0 * i + 1] * 3
    assert (inner.graphs, outer.graphs) == (0, 1)


@pytest.mark.gpu
def test_a_captured_step_is_no_part_of_a_graph_of_cupys():
    import cupy

    run = tb.graph.capture(lambda x: x * 2)
    x = tb.ones(3, device="cuda")
    for _ in range(STEPS):
        run(x)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        with pytest.raises(CaptureError, match="wanted the step itself"):
            run(x)
        stream.end_capture()
    assert run(x).tolist() == [2.0] * 3


def test_on_the_cpu_the_step_is_called():
    assert_same_bits(training(mlp, "sgd", True, "cpu"), training(mlp, "sgd", False, "cpu"))
    calls = []
    run = tb.graph.capture(lambda x: calls.append(x) or x.sum().item())
    assert [run(tb.ones(n)) for n in (1, 2, 2)] == [1, 2, 2] and len(calls) == 3
    assert run.graphs == 0 and run.__wrapped__ is run.step


def test_arguments():
    with pytest.raises(ArgumentError, match="function"):
        tb.graph.capture(3)
    run = tb.graph.capture(lambda *args: None)
    with pytest.raises(CaptureError, match="ndarray"):
        run(np.ones(3))
    with pytest.raises(CaptureError, match="requires a gradient"):
        run(tb.ones(3, requires_grad=True))


def test_errors_of_capturing_are_told_from_others():
    """CuPy raises several types; ours names the line that led there."""
    messages = ("the current stream is capturing, so D2H transfers are disallowed",
                "calling cuBLAS API during stream capture is currently unsupported")  # fmt: skip
    for kind, message in zip((RuntimeError, NotImplementedError), messages):

        def refused(kind=kind, message=message):
            raise kind(message)

        with pytest.raises(CaptureError, match=r"test_capture\.py:\d+, 'raise kind"):
            capture_file._named(refused)

    def breaks():
        raise RuntimeError("out of cheese")

    with pytest.raises(RuntimeError, match="cheese") as error:
        capture_file._named(breaks)
    assert not isinstance(error.value, CaptureError)


@pytest.mark.gpu
def test_a_graph_keeps_the_tables_that_its_optimizer_found_made():
    """Made outside the recording, they would go when others push them out of the cache."""
    import cupy

    weight = nn.Parameter(tb.zeros(1000, device="cuda"))
    weight.grad = tb.ones(1000, device="cuda")
    optimizer = nn.optim.SGD([weight], lr=1.0)

    def step():
        optimizer.step()
        return weight

    run = tb.graph.capture(step)
    for _ in range(capture_file.REHEARSALS + 1):
        run()
    optimizer_tables.cache_clear()
    gc.collect()
    # Whatever was freed is given out again, full of other values.
    taken = [cupy.full(512 >> i % 4, -1, np.int64) for i in range(4096)]
    assert run().detach().numpy().tolist() == [-capture_file.REHEARSALS - 2.0] * 1000
    del taken


@pytest.mark.gpu
def test_the_users_stream_stays_the_current_one():
    """CuPy's own context forgets a stream that was made current by use()."""
    import cupy

    before, stream = cupy.cuda.get_current_stream(), cupy.cuda.Stream(non_blocking=True)
    model = cnn("cuda")

    def step(x, y):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        model.zero_grad()
        return loss

    stream.use()
    try:
        run = tb.graph.capture(step)
        for x, y in batches("cuda", (1, 12, 12)):
            run(x, y)
            assert cupy.cuda.get_current_stream() == stream
    finally:
        before.use()


@pytest.mark.gpu
def test_both_gradients_of_a_convolution_are_made_side_by_side():
    """A graph of one chain has as many edges as nodes less one; branches join again."""
    layer = nn.Conv2d(3, 4, 3, device="cuda")
    want = nn.Conv2d(3, 4, 3, device="cuda")
    want.load_state_dict(layer.state_dict())

    def step(layer, x):
        x = x.detach().requires_grad_()
        layer.zero_grad()
        layer(x).square().sum().backward()
        return x.grad

    run = tb.graph.capture(lambda x: step(layer, x))
    for i in range(STEPS):
        x = tb.full((2, 3, 6, 6), float(i), device="cuda")
        assert np.array_equal(run(x).numpy(), step(want, x).numpy())
        assert np.array_equal(layer.weight.grad.numpy(), want.weight.grad.numpy())
    (graph,) = run._graphs.values()
    assert graph._recording._side is not None
