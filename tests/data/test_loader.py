"""DataLoader: every example once, in the promised order, as the promised numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinybn.data import DataLoader, Dataset, digits, loader
from tinybn.errors import ArgumentError, DTypeError, ShapeError
from tinybn.tensor import Tensor, as_dtype, manual_seed
from tinybn.tensor.device import cuda_available

no_gpu = pytest.mark.skipif(not cuda_available(), reason="no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, no_gpu])]


@pytest.fixture(scope="module", params=DEVICES)
def device(request):
    return request.param


def small(n: int = 10) -> Dataset:
    """n images of 2x3 whose first pixel is their number."""
    images = np.random.default_rng(0).integers(0, 256, (n, 2, 3), dtype=np.uint8)
    images[:, 0, 0] = np.arange(n)
    return Dataset(images, np.arange(n) % 3, ("a", "b", "c"), 0.25, 0.5)


def rows(batches) -> list[int]:
    """The numbers of the examples of small(), in the order in which they came."""
    return [round(float(v)) for x, _ in batches for v in x.numpy()[:, 0, 0, 0] * 255]


@pytest.mark.parametrize("normalize", [True, False, (0.1, 0.3)])
def test_numbers_shapes_and_dtypes(device, normalize):
    data = small()
    mean, std = {True: (0.25, 0.5), False: (0.0, 1.0)}.get(normalize, normalize)
    batches = list(DataLoader(data, 4, device=device, normalize=normalize))
    assert [x.shape for x, _ in batches] == [(4, 1, 2, 3), (4, 1, 2, 3), (2, 1, 2, 3)]
    for x, y in batches:
        assert isinstance(x, Tensor) and x.dtype == np.float32 and str(x.device).startswith(device)
        assert isinstance(y, Tensor) and y.dtype == np.int64 and str(y.device).startswith(device)
    inputs = np.concatenate([x.numpy() for x, _ in batches])
    wanted = ((data.images[:, None] / 255 - mean) / std).astype(np.float32)
    np.testing.assert_array_equal(inputs, wanted)
    np.testing.assert_array_equal(np.concatenate([y.numpy() for _, y in batches]), data.labels)


def test_digits_come_out_normalised(device):
    train, _ = digits()
    inputs = np.concatenate([x.numpy() for x, _ in DataLoader(train, 500, device=device)])
    assert abs(inputs.mean(dtype=np.float64)) < 1e-6
    assert inputs.std(dtype=np.float64) == pytest.approx(1.0, abs=1e-6)


@given(
    n=st.integers(1, 30), size=st.integers(1, 35), shuffle=st.booleans(), drop_last=st.booleans()
)
def test_every_example_once(n, size, shuffle, drop_last):
    if drop_last and size > n:
        return
    batches = DataLoader(
        small(n), size, shuffle, seed=n, drop_last=drop_last, device="cpu", normalize=False
    )
    passed = list(batches)
    assert len(passed) == len(batches) == (n // size if drop_last else -(-n // size))
    seen = rows(passed)
    assert len(set(seen)) == len(seen) == (n // size * size if drop_last else n)
    if not shuffle:
        assert seen == sorted(seen)
    assert all(len(x.numpy()) == size for x, _ in passed[:-1])


def test_inputs_and_targets_stay_together(device):
    data = small(50)
    for x, y in DataLoader(data, 7, shuffle=True, seed=1, device=device, normalize=False):
        np.testing.assert_array_equal(data.labels[rows([(x, y)])], y.numpy())


def test_each_epoch_has_its_order_and_can_be_had_again(device):
    def make() -> DataLoader:
        return DataLoader(small(50), 8, True, seed=3, device=device, normalize=False)

    batches = make()
    epochs = [rows(batches) for _ in range(3)]
    assert batches.epoch == 3
    assert epochs[0] != epochs[1] != epochs[2] and sorted(epochs[0]) == sorted(epochs[1])
    assert [rows(again) for again in [make()] * 3] == epochs
    resumed = make()
    resumed.set_epoch(2)
    assert resumed.epoch == 2 and rows(resumed) == epochs[2]
    assert rows(DataLoader(small(50), 8, True, seed=4, device=device, normalize=False)) != epochs[0]


def test_the_order_is_fixed_when_the_pass_begins():
    batches = DataLoader(small(50), 8, True, seed=3, device="cpu", normalize=False)
    first, second = iter(batches), iter(batches)
    assert rows(first) != rows(second)
    batches.set_epoch(0)
    started = iter(batches)
    batches.set_epoch(7)
    batches.set_epoch(0)
    assert rows(started) == rows(batches)


def test_manual_seed_covers_shuffling():
    batches = DataLoader(small(50), 8, True, device="cpu", normalize=False)
    manual_seed(5)
    first = rows(batches)
    other = rows(batches)
    manual_seed(5)
    batches.set_epoch(0)
    assert rows(batches) == first != other


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64", "bool"]
)
def test_a_pair_is_yielded_as_it_is(device, dtype):
    dtype = as_dtype(dtype)
    inputs = np.arange(30).reshape(10, 3).astype(dtype)
    targets = np.linspace(0, 1, 10, dtype=np.float32)
    for pair in (
        (inputs, targets),
        [Tensor(inputs, device=device), Tensor(targets, device=device)],
    ):
        passed = list(DataLoader(pair, 4, device=device))
        assert all(x.dtype == inputs.dtype and y.dtype == targets.dtype for x, y in passed)
        np.testing.assert_array_equal(np.concatenate([x.numpy() for x, _ in passed]), inputs)
        np.testing.assert_array_equal(np.concatenate([y.numpy() for _, y in passed]), targets)


def test_a_pair_of_tensors_stays_where_it_is(device):
    pair = (Tensor(np.ones((4, 2)), device=device), Tensor(np.arange(4), device=device))
    assert DataLoader(pair, 2).device == pair[0].device
    assert str(DataLoader(pair, 2, device="cpu").device) == "cpu"
    x, _ = next(iter(DataLoader(pair, 2, device="cpu")))
    assert str(x.device) == "cpu"


def test_batches_are_copies(device):
    """Writing into a batch changes neither the data nor another batch."""
    inputs, targets = np.zeros((6, 2), np.float32), np.zeros(6, np.int64)
    batches = DataLoader((inputs, targets), 3, device=device)
    for x, y in batches:
        x.data[...] = 1
        y.data[...] = 1
    for x, y in batches:
        assert not x.numpy().any() and not y.numpy().any()
    assert not inputs.any() and not targets.any()


def test_transform_is_applied_to_each_batch(device):
    batches = DataLoader(
        small(), 4, device=device, normalize=False, transform=lambda x: Tensor.wrap(x.data * 2)
    )
    total = sum(float(x.numpy().sum()) for x, _ in batches)
    assert total == pytest.approx(small().images.sum() / 255 * 2, rel=1e-5)


def test_blocks_and_copies_batch_by_batch_give_the_same(device, monkeypatch):
    """However many batches a gather makes, and wherever the data are kept."""
    data = small(50)
    wanted = [x.numpy() for x, _ in DataLoader(data, 7, True, seed=1, device=device)]
    monkeypatch.setattr(loader, "RESIDENT_SHARE", 1 << 60)  # nothing fits
    for block in (1, 7 * 6 * 4 * 2, 1 << 40):
        monkeypatch.setattr(loader, "BLOCK_BYTES", block)
        again = [x.numpy() for x, _ in DataLoader(data, 7, True, seed=1, device=device)]
        assert len(again) == len(wanted)
        for left, right in zip(again, wanted, strict=True):
            np.testing.assert_array_equal(left, right)


def shifted(data, shift, epoch):
    """Every image of an unshuffled epoch, with its place among all that it may be moved to."""
    x = np.concatenate([x.numpy()[:, 0] for x, _ in epoch])
    found = []
    for image, got in zip(data.images, x):
        padded = np.pad(image, shift)
        height, width = image.shape
        places = [
            (down, right)
            for down in range(2 * shift + 1)
            for right in range(2 * shift + 1)
            if np.array_equal(np.round(got * 255), padded[down:, right:][:height, :width])
        ]
        assert len(places) == 1
        found.append(places[0])
    return found


def test_shifts_are_small_random_and_new_in_each_epoch(device):
    rng = np.random.default_rng(0)
    data = Dataset(rng.integers(1, 256, (500, 7, 5), np.uint8), np.zeros(500, np.int64), ("a",))
    batches = DataLoader(data, 64, seed=3, device=device, normalize=False, shift=2)
    first, second = (shifted(data, 2, batches) for _ in range(2))
    assert first != second
    batches.set_epoch(0)
    assert shifted(data, 2, batches) == first
    # 25 places of 20 images each on average: a standard deviation of sqrt(500 · 0.04 · 0.96).
    counts = np.bincount([5 * down + right for down, right in first], minlength=25)
    assert np.abs(counts - 20).max() < 5 * np.sqrt(500 * 0.04 * 0.96)


def test_shifts_bring_in_the_background_and_do_not_depend_on_the_batches(device):
    data = small(20)
    whole = [x.numpy() for x, _ in DataLoader(data, 20, True, seed=1, device=device, shift=1)]
    parts = [x.numpy() for x, _ in DataLoader(data, 3, True, seed=1, device=device, shift=1)]
    assert np.array_equal(np.concatenate(parts), whole[0])
    plain = [x.numpy() for x, _ in DataLoader(data, 20, True, seed=1, device=device)]
    assert not np.array_equal(plain[0], whole[0])
    white = Dataset(np.full((9, 4, 4), 255, np.uint8), np.zeros(9, np.int64), ("a",), 0.25, 0.5)
    ((x, _),) = DataLoader(white, 9, seed=0, device=device, shift=1)
    assert set(np.unique(x.numpy())) == {np.float32(-0.5), np.float32(1.5)}


@pytest.mark.gpu
@no_gpu
def test_an_epoch_gathered_by_its_user_has_the_same_batches(monkeypatch):
    arguments = dict(batch_size=4, shuffle=True, seed=5, device="cuda", shift=1)
    batches, same = DataLoader(small(), **arguments), DataLoader(small(), **arguments)
    for _ in range(2):
        epoch, sizes = batches.begin_on_device()
        assert sizes == [4, 4, 2]
        for size, (x, y) in zip(sizes, same, strict=True):
            inputs, targets = epoch.take(size)
            assert np.array_equal(inputs.get(), x.numpy())
            assert np.array_equal(targets.get(), y.numpy())
    assert batches.epoch == 2
    assert DataLoader(small(), 4, drop_last=True, device="cuda").begin_on_device()[1] == [4, 4]
    assert DataLoader(small(), transform=lambda x: x, device="cuda").begin_on_device() is None
    pair = (np.zeros((3, 2), np.float32), np.zeros(3, np.int64))
    assert DataLoader(pair, device="cuda").begin_on_device() is None

    class Doubled(DataLoader):
        def __iter__(self):
            return ((2 * x, y) for x, y in super().__iter__())

    assert Doubled(small(), device="cuda").begin_on_device() is None
    monkeypatch.setattr(loader, "RESIDENT_SHARE", 1 << 60)
    assert DataLoader(small(), device="cuda").begin_on_device() is None


@pytest.mark.gpu
@no_gpu
def test_an_epoch_is_another_where_the_loader_is_cut_otherwise_or_in_the_middle():
    batches = DataLoader(small(), 4, drop_last=True, device="cuda")
    first, _ = batches.begin_on_device()
    first.take(4)
    second, _ = batches.begin_on_device()
    assert second is not first and second.take(4)[1].tolist() == [0, 1, 2, 0]
    assert first.take(4)[1].tolist() == [1, 2, 0, 1]
    second.take(4)
    assert batches.begin_on_device()[0] is second
    batches.batch_size = 3
    third, sizes = batches.begin_on_device()
    assert third is not second and sizes == [3, 3, 3]
    batches.shift = 1
    assert batches.begin_on_device()[0] is not third


def test_on_the_cpu_batches_are_not_gathered_by_a_step():
    assert DataLoader(small(), device="cpu").begin_on_device() is None


@pytest.mark.gpu
@no_gpu
def test_what_fits_is_moved_to_the_gpu_once(monkeypatch):
    assert not isinstance(DataLoader(small(), device="cuda")._inputs, np.ndarray)
    monkeypatch.setattr(loader, "RESIDENT_SHARE", 1 << 60)
    assert isinstance(DataLoader(small(), device="cuda")._inputs, np.ndarray)


def test_repr_and_attributes():
    batches = DataLoader(small(), 4, True, seed=2, drop_last=True, device="cpu")
    assert repr(batches) == "DataLoader(2 batches of 4, shuffled, on cpu)"
    assert (batches.batch_size, batches.shuffle, batches.seed) == (4, True, 2)
    assert (batches.drop_last, batches.epoch) == (True, 0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_size": 0}, ArgumentError, "batch_size is 0; wanted at least 1"),
        ({"batch_size": 2.5}, TypeError, "batch_size is 2.5; wanted an int"),
        ({"batch_size": True}, TypeError, "batch_size is True; wanted an int"),
        ({"batch_size": "4"}, TypeError, "batch_size is '4'; wanted an int"),
        ({"seed": -1}, ArgumentError, "seed is -1"),
        ({"seed": 1.0}, TypeError, "seed is 1.0"),
        ({"normalize": (0.1,)}, ArgumentError, "wanted a bool or"),
        ({"normalize": None}, ArgumentError, "wanted a bool or"),
        (
            {"normalize": (0.1, 0.0)},
            ArgumentError,
            "std of normalize is 0.0; wanted a finite number above 0",
        ),
        (
            {"normalize": (float("nan"), 1.0)},
            ArgumentError,
            "mean of normalize is nan; wanted a finite number",
        ),
        ({"shift": -1}, ArgumentError, "shift is -1; wanted at least 0"),
        ({"shift": 0.5}, TypeError, "shift is 0.5; wanted an int"),
        ({"transform": 3}, TypeError, "transform is int"),
        ({"device": "tpu"}, ArgumentError, "tpu"),
        ({"batch_size": 11, "drop_last": True}, ArgumentError, "no batch of 10 examples"),
        ({"num_workers": 2}, TypeError, "num_workers"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        DataLoader(small(), **{"device": "cpu", **arguments})


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        (3, TypeError, "dataset is int"),
        ((np.ones(3),), TypeError, "wanted a Dataset or a pair"),
        (([1, 2], [3, 4]), TypeError, "a pair holds list"),
        ((np.ones(3, np.uint8), np.ones(3)), DTypeError, "uint8"),
        ((np.ones(()), np.ones(3)), ShapeError, "at least one axis"),
        ((np.ones((3, 2)), np.ones(4)), ShapeError, "3 inputs but 4 targets"),
        ((np.ones((0, 2)), np.ones(0)), ArgumentError, "empty"),
    ],
)
def test_bad_data(dataset, error, message):
    with pytest.raises(error, match=message):
        DataLoader(dataset, device="cpu")


def test_empty_dataset_and_what_is_for_images_alone():
    with pytest.raises(ArgumentError, match="empty"):
        DataLoader(small()[:0], device="cpu")
    with pytest.raises(ArgumentError, match="normalize needs a Dataset"):
        DataLoader((np.ones(3), np.ones(3)), normalize=(0.0, 1.0), device="cpu")
    with pytest.raises(ArgumentError, match="shift 2 needs a Dataset"):
        DataLoader((np.ones(3), np.ones(3)), shift=2, device="cpu")


def test_bad_epoch():
    batches = DataLoader(small(), device="cpu")
    with pytest.raises(ArgumentError, match="epoch is -1"):
        batches.set_epoch(-1)
