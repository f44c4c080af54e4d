"""autocast: what is computed in which dtype, whose gradients are whose, and when it holds."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import tinybn as tb
from tests.engines import all_engines
from tinybn import nn
from tinybn.errors import ArgumentError, DTypeError, ShapeError
from tinybn.nn import functional as F
from tinybn.nn.amp import autocast
from tinybn.testing import epsilon

LOW = pytest.mark.parametrize("dtype", [tb.bfloat16, tb.float16], ids=["bfloat16", "float16"])


def drawn(*shape, dtype=np.float32, device="cpu", seed=0):
    values = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return tb.Tensor(values, device=device, requires_grad=True)


def wide(tensor):
    return tensor.detach().numpy().astype(np.float64)


def now():
    """The dtype in which a product of float32 is computed in this thread now."""
    return tb.matmul(tb.ones((1, 1), device="cpu"), tb.ones((1, 1), device="cpu")).dtype


# What runs in which dtype

PRODUCTS = {
    "linear": (F.linear, [(5, 7), (3, 7), (3,)]),
    "linear_without_bias": (F.linear, [(2, 5, 7), (3, 7)]),
    "tb.linear": (tb.linear, [(5, 7), (3, 7), (3,)]),
    "matmul": (tb.matmul, [(2, 5, 7), (7, 3)]),
    "@": (lambda a, b: a @ b, [(5, 7), (7,)]),
    "conv2d": (F.conv2d, [(2, 3, 6, 6), (4, 3, 3, 3), (4,)]),
    "conv2d_of_one_image": (F.conv2d, [(3, 6, 6), (4, 3, 3, 3)]),
}
EACH_PRODUCT = pytest.mark.parametrize(("product", "shapes"), PRODUCTS.values(), ids=PRODUCTS)


@all_engines
@LOW
@EACH_PRODUCT
def test_products_are_those_of_explicit_casts(engine, dtype, product, shapes):
    device = "cuda" if engine.name == "cuda" else "cpu"
    inputs = [drawn(*s, device=device, seed=i) for i, s in enumerate(shapes)]
    twins = [drawn(*s, device=device, seed=i) for i, s in enumerate(shapes)]
    with engine.active():
        with autocast(dtype=dtype):
            result = product(*inputs)
        explicit = product(*(t.to(dtype) for t in twins))
        assert result.dtype == dtype
        upstream = drawn(*result.shape, device=device, seed=9).detach().to(dtype)
        result.backward(upstream)
        explicit.backward(upstream)
    np.testing.assert_array_equal(wide(result), wide(explicit))
    for ours, theirs in zip(inputs, twins):
        assert ours.dtype == ours.grad.dtype == np.float32
        np.testing.assert_array_equal(wide(ours.grad), wide(theirs.grad))


@LOW
@EACH_PRODUCT
def test_products_and_gradients_are_near_those_of_float64(dtype, product, shapes):
    # Each factor is rounded by at most ε/2 of itself, the products of two are added up in float32
    # or wider, and the sum is rounded once: all in all (1 + ε/2)³ − 1 < 2ε of Σ|a·b|, whatever the
    # number n of terms. float32's own roundings, of n ≤ 50, are n·2⁻²⁴ ≪ ε/4. float16's
    # subnormals are off by at most 2⁻²⁵ each, beside factors of at most 5.
    eps = epsilon(dtype)
    inputs = [drawn(*s, seed=i) for i, s in enumerate(shapes)]
    exact = [drawn(*s, seed=i).detach().double() for i, s in enumerate(shapes)]
    magnitude = [tb.Tensor(abs(t.numpy()), device="cpu", requires_grad=True) for t in exact]
    for tensor in exact:
        tensor.requires_grad = True
    with autocast(dtype=dtype):
        result = product(*inputs)
    want, bound = product(*exact), product(*magnitude)
    upstream = drawn(*result.shape, seed=9).detach().to(dtype)
    result.backward(upstream)
    want.backward(upstream.double())
    bound.backward(tb.Tensor(abs(wide(upstream)), device="cpu"))
    pairs = [(result, want, bound), *((i.grad, e.grad, m.grad)
             for i, e, m in zip(inputs, exact, magnitude))]  # fmt: skip
    for ours, theirs, largest in pairs:
        assert (abs(wide(ours) - wide(theirs)) <= 2 * eps * wide(largest) + 50 * 5 * 2**-25).all()


CLASSES = tb.Tensor(np.arange(4), device="cpu")


def eighths(x):
    """A target of x's shape and dtype that every dtype holds exactly."""
    values = np.arange(x.size).reshape(x.shape) % 7 / 8
    return tb.Tensor(values.astype(x.dtype), device="cpu")


FLOAT32 = {
    "sum": lambda x: x.sum(axis=1),
    "mean": lambda x: x.mean(),
    "cumsum": lambda x: x.cumsum(axis=1),
    "softmax": lambda x: F.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "cross_entropy": lambda x: F.cross_entropy(x, CLASSES),
    "cross_entropy_of_probabilities": lambda x: F.cross_entropy(x, eighths(x)),
    "nll_loss": lambda x: F.nll_loss(x, CLASSES),
    "mse_loss": lambda x: F.mse_loss(x, eighths(x)),
    "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, eighths(x)),
}


@LOW
@pytest.mark.parametrize("function", FLOAT32.values(), ids=FLOAT32)
def test_losses_softmax_and_sums_are_those_of_explicit_float32(dtype, function):
    x, twin = drawn(4, 5, dtype=dtype), drawn(4, 5, dtype=dtype)
    assert function(x).dtype == dtype
    with autocast(dtype=dtype):
        result = function(x)
    explicit = function(twin.float())
    assert result.dtype == np.float32
    upstream = drawn(*result.shape, seed=9).detach()
    result.backward(upstream)
    explicit.backward(upstream)
    assert x.grad.dtype == dtype
    np.testing.assert_array_equal(wide(result), wide(explicit))
    np.testing.assert_array_equal(wide(x.grad), wide(twin.grad))


@LOW
def test_a_sum_beyond_the_low_dtype_keeps_its_digits(dtype):
    x = tb.full((4096,), 17.0, dtype=dtype, device="cpu")  # 69632: float16 ends at 65504
    with autocast(dtype=dtype):
        assert x.sum().item() == 69632.0


@LOW
def test_batch_norm_takes_low_activations_with_float32_statistics(dtype):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).to("cpu")
    seen = []
    model[1].weight.register_hook(lambda grad: seen.append(grad.dtype))
    x = drawn(8, 3, 6, 6)
    with autocast(dtype=dtype):
        y = model(x)
    y.backward(drawn(*y.shape, seed=1).detach().to(dtype))
    assert y.dtype == dtype and x.grad.dtype == np.float32 and seen == [np.float32]
    assert model[1].running_mean.dtype == model[1].running_var.dtype == np.float32
    assert abs(model[1].running_mean.numpy()).min() > 0
    for name, param in model.named_parameters():
        assert param.dtype == param.grad.dtype == np.float32, name


def test_elementwise_operations_are_promoted_as_ever():
    low, high = tb.ones(3, dtype=tb.bfloat16, device="cpu"), tb.ones(3, device="cpu")
    with autocast():
        assert (low * 2).dtype == tb.bfloat16 and low.exp().dtype == tb.bfloat16
        assert (low + high).dtype == np.float32 and (high * high).dtype == np.float32


def test_an_adaptive_pool_whose_windows_differ_stays_in_its_dtype():
    # It is made of products with a matrix of shares, which are none of the user's.
    x = drawn(1, 1, 5, 5).detach()
    want = F.adaptive_avg_pool2d(x, 3)
    with autocast():
        np.testing.assert_array_equal(F.adaptive_avg_pool2d(x, 3).numpy(), want.numpy())


@EACH_PRODUCT
def test_float64_is_left_alone(product, shapes):
    inputs = [drawn(*s, dtype=np.float64, seed=i) for i, s in enumerate(shapes)]
    want = product(*inputs)
    with autocast():
        result = product(*inputs)
        # Beside float64 nothing is rounded, or the result would show digits that it lacks.
        mixed = product(inputs[0], *(t.float() for t in inputs[1:]))
        assert inputs[0].sum().dtype == inputs[0].mean().dtype == np.float64
    assert result.dtype == mixed.dtype == np.float64
    np.testing.assert_array_equal(wide(result), wide(want))
    outside = product(inputs[0], *(t.float() for t in inputs[1:]))
    np.testing.assert_array_equal(wide(mixed), wide(outside))


def test_integers_are_left_alone():
    a = tb.arange(6, device="cpu").reshape(2, 3)
    with autocast():
        assert (a @ a.T).dtype == np.int64 and a.sum().dtype == np.int64
        assert a.mean().dtype == np.float64


def test_the_other_low_dtype_is_cast_too():
    x, weight = drawn(2, 3, dtype=tb.float16), drawn(4, 3)
    with autocast(dtype=tb.bfloat16):
        assert F.linear(x, weight).dtype == tb.bfloat16


# Training


def digits():
    """A small MLP with its optimiser, and one batch to learn."""
    tb.manual_seed(0)
    images, labels = next(iter(tb.data.DataLoader(tb.data.digits()[0], 128, device="cpu")))
    model = nn.models.mlp(hidden=(32,)).to("cpu")
    return images, labels, model, nn.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@LOW
def test_a_small_network_learns_with_float32_master_weights(dtype):
    courses = []
    for enabled in (False, True):
        images, labels, model, optimizer = digits()
        scaler = nn.amp.GradScaler(enabled=enabled and dtype == tb.float16)
        losses = []
        for _ in range(8):
            with autocast(dtype=dtype, enabled=enabled):
                logits = model(images)
                loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            assert logits.dtype == (dtype if enabled else np.float32) and loss.dtype == np.float32
            losses.append(loss.item())
        courses.append(losses)
    # A logit of size z is off by a few roundings, ε/2·z each; in the mean of 128 losses most
    # of that cancels, and what is left may add up over 8 steps: ε of the loss.
    assert courses[1] == pytest.approx(courses[0], rel=epsilon(dtype))
    assert courses[1][-1] < 0.4 * courses[1][0]
    for param in model.parameters():
        assert param.dtype == param.grad.dtype == np.float32
    for state in optimizer.state.values():
        assert state["momentum_buffer"].dtype == np.float32
    assert all(t.dtype in (np.float32, np.int64) for t in model.state_dict().values())


@pytest.mark.parametrize("amp", [tb.bfloat16, "bfloat16", tb.float16, "float16"])
def test_the_trainer_learns_with_amp(amp):
    images, labels, model, optimizer = digits()
    seen = []

    def loss(logits, target):
        seen.append(logits.dtype)
        return F.cross_entropy(logits, target)

    trainer = nn.Trainer(model, optimizer, loss=loss, progress=False, amp=amp)
    dtype = tb.float16 if amp in (tb.float16, "float16") else tb.bfloat16
    assert trainer.scaler.is_enabled() == (dtype == tb.float16)
    history = trainer.fit([(images, labels)], epochs=8, eval_loader=[(images, labels)])
    assert history[-1]["loss"] < 0.4 * history[0]["loss"] and set(seen) == {dtype}
    assert 0.5 < history[-1]["accuracy"] <= 1 and now() == np.float32
    assert all(param.dtype == np.float32 for param in model.parameters())


def test_the_trainer_s_amp_is_the_loop_with_autocast_and_scaler():
    images, labels, model, optimizer = digits()
    nn.Trainer(model, optimizer, progress=False, amp=tb.float16).fit([(images, labels)], epochs=3)
    trained = {key: value.numpy() for key, value in model.state_dict().items()}
    images, labels, model, optimizer = digits()
    scaler = nn.amp.GradScaler()
    for _ in range(3):
        with autocast(dtype=tb.float16):
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    for key, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), trained[key])


@pytest.mark.parametrize("amp", [tb.float32, "fast", True])
def test_an_amp_that_is_no_low_dtype(amp):
    _, _, model, optimizer = digits()
    with pytest.raises(DTypeError):
        nn.Trainer(model, optimizer, amp=amp)


# When it holds


def test_it_nests_and_is_switched_off():
    assert now() == np.float32
    with autocast():
        assert now() == tb.bfloat16
        with autocast(dtype=tb.float16):
            assert now() == tb.float16
            with autocast(enabled=False):
                assert now() == np.float32
            assert now() == tb.float16
        assert now() == tb.bfloat16
    assert now() == np.float32


def test_one_object_inside_itself_and_again():
    context = autocast()
    for _ in range(2):
        with context, context:
            assert now() == tb.bfloat16
        assert now() == np.float32


def test_an_error_ends_it():
    with pytest.raises(KeyError), autocast():
        raise KeyError
    assert now() == np.float32


def test_other_threads_do_not_see_it():
    seen = {}

    def look():
        seen["before"] = now()
        with autocast(dtype=tb.float16):
            seen["inside"] = now()

    with autocast():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert now() == tb.bfloat16
    assert seen == {"before": np.float32, "inside": tb.float16}


def test_as_a_decorator_of_functions_methods_and_generators():
    @autocast(dtype=tb.float16)
    def function(factor):
        "Text."
        return now(), factor

    @autocast("cpu")
    def steps():
        yield now()
        yield now()

    class Model(nn.Module):
        @autocast()
        def forward(self, x):
            return x @ x

    assert function.__doc__ == "Text." and function(factor=3) == (tb.float16, 3)
    for dtype in steps():
        assert dtype == tb.bfloat16 and now() == np.float32
    assert Model()(tb.ones((2, 2), device="cpu")).dtype == tb.bfloat16
    assert now() == np.float32


def test_a_device_type_first_as_in_pytorch():
    # PyTorch's defaults: float16 on the GPU, bfloat16 on the CPU.
    with autocast("cuda"):
        assert now() == np.float32  # of products on the CPU: the GPU's alone are cast
        with autocast("cpu"):
            assert now() == tb.bfloat16
            with autocast(device_type="cuda", enabled=False):
                assert now() == tb.bfloat16
    for given in (("cpu", tb.float16), ("cpu", "float16"), (tb.float16,), ("float16",)):
        with autocast(*given):
            assert now() == tb.float16
    with autocast("cpu", tb.bfloat16, False):
        assert now() == np.float32


@pytest.mark.gpu
def test_on_the_gpu_the_device_types_are_apart():
    x = tb.ones((2, 2), device="cuda")
    with autocast("cuda"):
        assert (x @ x).dtype == tb.float16 and now() == np.float32
    with autocast("cpu"):
        assert (x @ x).dtype == np.float32 and now() == tb.bfloat16
    with autocast():
        assert (x @ x).dtype == tb.bfloat16


@pytest.mark.parametrize(
    ("given", "options", "error", "match"),
    [
        ((), {"dtype": tb.float32}, DTypeError, "float32; wanted float16 or bfloat16"),
        ((), {"dtype": tb.int32}, DTypeError, "int32; wanted float16 or bfloat16"),
        ((tb.float64,), {}, DTypeError, "float64; wanted float16 or bfloat16"),
        (("xpu",), {"dtype": tb.float16}, ArgumentError, "'xpu'; wanted 'cpu' or 'cuda'"),
        (("xpu",), {}, DTypeError, "'xpu' is not a data type"),
        (("cpu",), {"cache_enabled": False}, TypeError, "cache_enabled"),
    ],
)
def test_arguments_that_cannot_be(given, options, error, match):
    with pytest.raises(error, match=match):
        autocast(*given, **options)


@LOW
def test_batch_norm_takes_a_residual_of_another_precision(dtype):
    rng = np.random.default_rng(0)
    x = tb.Tensor(rng.standard_normal((4, 3, 5))).to(dtype)
    residual = tb.Tensor(rng.standard_normal((4, 3, 5)).astype(np.float32), requires_grad=True)
    layer = nn.BatchNorm1d(3)
    with autocast(dtype=dtype):
        y = layer(x, residual=residual)
    assert y.dtype == dtype
    y.sum().backward()
    assert residual.grad.dtype == tb.float32 and np.all(residual.grad.numpy() == 1)
    want = layer(x, residual=residual.detach().to(dtype))
    assert np.array_equal(y.detach().numpy(), want.detach().numpy())
    with autocast(dtype=dtype), pytest.raises(ShapeError, match="float64"):
        layer(x, residual=residual.detach().to(tb.float64))
    with pytest.raises(ShapeError, match="float32"):
        layer(x, residual=residual)
