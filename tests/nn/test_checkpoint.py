"""Checkpoints: what is saved comes back, damaged files say so, writes are whole or nothing."""

from __future__ import annotations

import json
import os
import stat

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import tinybn as tb
from tinybn import nn
from tinybn.errors import ArgumentError, DataError, TinyBNError

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def raw_file(header, data=b""):
    """A safetensors file by the format's description: length, JSON header, bytes."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def loads_or_is_refused(path, content):
    """Load ``content``: nothing but a dictionary or a DataError may come of it."""
    path.write_bytes(content)
    try:
        assert type(tb.load(path)) is dict
    except DataError as error:
        assert str(path) in str(error)


def assert_same(got, want):
    """Equal structures, with equal types, and bit-identical tensors."""
    assert type(got) is type(want)
    if isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            assert_same(got[key], want[key])
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for a, b in zip(got, want):
            assert_same(a, b)
    elif isinstance(want, tb.Tensor):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        assert got.cpu().data.tobytes() == want.cpu().data.tobytes()
    else:
        assert got == want or (got != got and want != want)


@DEVICES
@pytest.mark.parametrize(
    "dtype",
    [tb.float16, tb.bfloat16, tb.float32, tb.float64, tb.int32, tb.int64, tb.bool_],
    ids=lambda d: d.name,
)
def test_every_dtype_and_shape(tmp_path, dtype, device):
    rng = np.random.default_rng(0)
    state = {
        f"t{i}": tb.Tensor((rng.standard_normal(shape) * 3).astype(dtype), device=device)
        for i, shape in enumerate([(), (1,), (3, 4), (2, 0), (0,), (2, 1, 3)])
    }
    state["strided"] = tb.Tensor(np.arange(12).reshape(3, 4).astype(dtype), device=device).T
    tb.save(tmp_path / "x.safetensors", state)
    loaded = tb.load(tmp_path / "x.safetensors", device=device)
    assert set(loaded) == set(state)
    for key in state:
        assert_same(loaded[key], state[key].contiguous())
        assert loaded[key].device == state[key].device
        loaded[key].zero_()  # its own memory, and writable
    assert_same(tb.load(tmp_path / "x.safetensors", device=device)["t2"], state["t2"])


@pytest.mark.parametrize("shape", [(), (2, 3), (2, 0)], ids=str)
def test_safetensors_takes_bfloat16_arrays(shape):
    """Nothing but safetensors: what our save relies on, also at its least version."""
    from safetensors import deserialize
    from safetensors.numpy import save

    array = (np.arange(np.prod(shape)) - 1.5).reshape(shape).astype(tb.bfloat16)
    ((name, entry),) = deserialize(save({"w": array}))
    assert (name, entry["dtype"], entry["shape"]) == ("w", "BF16", list(shape))
    assert bytes(entry["data"]) == array.tobytes()


def test_arrays_in_any_memory_layout(tmp_path):
    a = np.arange(24.0).reshape(2, 3, 4)
    state = {"T": a.T, "step": a[:, ::2], "back": a[::-1], "wide": np.broadcast_to(a[0, 0], (3, 4))}
    tb.save(tmp_path / "x", state)
    for key, value in tb.load(tmp_path / "x").items():
        np.testing.assert_array_equal(value.numpy(), state[key])
    with pytest.raises(ArgumentError, match="dtype >f8"):
        tb.save(tmp_path / "x", {"w": a.astype(">f8")})


def test_a_training_run_goes_on_where_it_was(tmp_path):
    """Two more steps after loading give the bits that they give without."""

    def start():
        model = nn.models.mlp(4, (3,), 2)
        optimizer = nn.optim.Adam(model.parameters(), lr=0.1)
        return model, optimizer, nn.schedule.OneCycleLR(optimizer, 0.1, total_steps=10)

    def step(model, optimizer, schedule):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), t).backward()
        optimizer.step()
        schedule.step()

    tb.manual_seed(0)
    x, t = tb.randn(8, 4), tb.randint(2, size=8)
    parts = start()
    for _ in range(3):
        step(*parts)
    state = {
        "model": parts[0].state_dict(),
        "optimizer": parts[1].state_dict(),
        "schedule": parts[2].state_dict(),
        "random": tb.default_generator("cpu").get_state(),
        "epoch": 3,
    }
    tb.save(tmp_path / "run.safetensors", state)
    loaded = tb.load(tmp_path / "run.safetensors")
    assert_same(loaded, state)
    others = start()
    for part, key in zip(others, ("model", "optimizer", "schedule"), strict=True):
        part.load_state_dict(loaded[key])
    for _ in range(2):
        step(*parts)
        step(*others)
    assert_same(others[0].state_dict(), parts[0].state_dict())
    assert others[2].get_last_lr() == parts[2].get_last_lr()
    tb.default_generator("cpu").set_state(loaded["random"])


def test_values_of_all_kinds(tmp_path):
    state = {
        "none": None, "yes": True, "n": 2**53 + 1, "x": 0.1, "inf": float("inf"),
        "nan": float("nan"), "text": 'ä "quoted"\n', "list": [1, [2, tb.ones(1)], {}],
        "tuple": (1, (), tb.zeros(2)), 7: {"dict": 3, "__tensor__": "model"}, "empty": {},
    }  # fmt: skip
    tb.save(tmp_path / "x", state)
    assert_same(tb.load(tmp_path / "x"), state)
    tb.save(tmp_path / "x", {"a": np.float64(0.5), "b": np.ones(2), "c": np.int64(3)})
    assert_same(tb.load(tmp_path / "x"), {"a": 0.5, "b": tb.Tensor(np.ones(2)), "c": 3})


def test_names_in_the_file_are_those_that_others_read(tmp_path):
    from safetensors.numpy import load_file

    model = nn.models.mlp(4, (3,), 2)
    tb.save(tmp_path / "plain", model.state_dict())
    tb.save(tmp_path / "nested", {"model": model.state_dict(), "epoch": 1})
    names = [
        "1.weight", "1.bias", "2.weight", "2.bias", "2.running_mean", "2.running_var",
        "2.num_batches_tracked", "4.weight", "4.bias",
    ]  # fmt: skip
    plain = load_file(tmp_path / "plain")
    assert sorted(plain) == sorted(names)
    np.testing.assert_array_equal(plain["1.weight"], model[1].weight.detach().numpy())
    assert sorted(load_file(tmp_path / "nested")) == sorted(f"model.{name}" for name in names)


def test_a_file_without_metadata(tmp_path):
    from safetensors.numpy import save_file

    arrays = {"a.b": np.arange(6.0).reshape(2, 3), "n": np.array(7)}
    save_file(arrays, tmp_path / "x")
    assert_same(
        dict(sorted(tb.load(tmp_path / "x").items())), {k: tb.Tensor(v) for k, v in arrays.items()}
    )


def test_numbers_as_keys_stay_numbers(tmp_path):
    for state in ({0: tb.ones(1), 1: tb.zeros(2)}, {0: tb.ones(1), "s": {1: tb.ones(1), "1": 2}}):
        tb.save(tmp_path / "x", state)
        assert_same(tb.load(tmp_path / "x"), state)


def test_a_file_that_others_wrote(tmp_path):
    header = {
        "__metadata__": {"format": "pt"},
        "weight": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
        "bias": {"dtype": "BF16", "shape": [1], "data_offsets": [8, 10]},
    }
    path = tmp_path / "torch.safetensors"
    path.write_bytes(raw_file(header, np.array([1.5, -2], "<f4").tobytes() + b"\x40\x40"))
    layer = nn.Linear(2, 1)
    layer.load_state_dict(tb.load(path))
    assert layer.weight.tolist() == [[1.5, -2]] and layer.bias.item() == 3


def test_no_file_and_no_device(tmp_path):
    with pytest.raises(FileNotFoundError):
        tb.load(tmp_path / "nothing")
    with pytest.raises(ArgumentError):
        tb.load(tmp_path / "nothing", device="tape")


def test_every_truncation_is_found(tmp_path):
    path = tmp_path / "x"
    tb.save(path, {"model": {"w": tb.ones(3)}, "epoch": 1})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match="is not a whole safetensors file"):
            tb.load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 100,
        b"PK\x03\x04" + bytes(100),
        raw_file({"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, bytes(8)),
        raw_file({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(9)),
        raw_file({"w": {"dtype": "U16", "shape": [1], "data_offsets": [0, 2]}}, bytes(2)),
        raw_file({"w": {"dtype": "F32", "shape": [2**63, 0], "data_offsets": [0, 0]}}),
        raw_file({"w": {"dtype": "F32", "shape": [0, 2**62, 4], "data_offsets": [0, 0]}}),
        raw_file({"w": {"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]}}, bytes(4)),
        (2**60).to_bytes(8, "little") + bytes(100),
        (2**64 - 1).to_bytes(8, "little") + b"{}",
        raw_file({"__metadata__": {"tinybn": 3}}),
        raw_file({"__metadata__": {"tinybn": "[" * 100_000}}),
        raw_file({"__metadata__": {"tinybn": '{"list":[' * 50_000 + "]}" * 50_000}}),
        raw_file({"__metadata__": {"tinybn": '{"dict": [["a", ' + "1" * 5000 + "]]}"}}),
        raw_file({"__metadata__": {"tinybn": '{"dict": [["a", [1]]]}'}}),
        raw_file({"__metadata__": {"tinybn": '{"dict": [["a", {"what": []}]]}'}}),
        raw_file({"__metadata__": {"tinybn": '{"dict": [["a", {"list": "bc"}]]}'}}),
        raw_file({"__metadata__": {"tinybn": '{"dict": [[["a"], 1]]}'}}),
        raw_file({"__metadata__": {"tinybn": '{"dict": [["a", {"__tensor__": ["w"]}]]}'}}),
        raw_file(
            {"__metadata__": {"tinybn": '{"dict": [["a", {"__tensor__": "w", "list": []}]]}'}}
        ),
        raw_file({"__metadata__": {"tinybn": "{"}}),
        raw_file({"__metadata__": {"tinybn": '{"__tensor__": "w"}'}}),
        raw_file({"__metadata__": {"tinybn": '{"dict": [["w"]]}'}}),
        raw_file({"__metadata__": {"tinybn": '{"dict": 3}'}}),
        raw_file({"__metadata__": {"tinybn": '{"what": []}'}}),
        raw_file({"__metadata__": {"tinybn": "[]"}}),
        raw_file({"__metadata__": {"tinybn": "{}"}}),
    ],
    ids=range(27),
)
def test_a_damaged_file_is_a_data_error(tmp_path, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(DataError):
        tb.load(path)


def test_metadata_may_be_null(tmp_path):
    (tmp_path / "x").write_bytes(raw_file({"__metadata__": None}))
    assert tb.load(tmp_path / "x") == {}


def test_a_dtype_that_tinybn_lacks_is_named(tmp_path):
    from safetensors.numpy import save_file

    save_file({"pixels": np.zeros(3, np.uint8)}, tmp_path / "x")
    with pytest.raises(DataError, match="pixels of dtype U8; wanted one of F64, .*BOOL"):
        tb.load(tmp_path / "x")


def test_every_flipped_bit_of_the_header(tmp_path):
    """Some flips only change a name; none may end in another error or take memory without end."""
    path = tmp_path / "x"
    tb.save(path, {"w": tb.ones(1), "n": 1})
    whole = path.read_bytes()
    for bit in range(8 * (8 + int.from_bytes(whole[:8], "little"))):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        loads_or_is_refused(path, content)


# The folder is shared by the examples, which overwrite one file.
FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
HEADER_BYTES = st.sampled_from(b'0123456789{}[]",:-.eE\\nBF\x00\xff ')


@FUZZ
@given(data=st.data())
def test_a_header_with_some_bytes_replaced(tmp_path, data):
    path = tmp_path / "x"
    tb.save(path, {"m": {"w": tb.ones(3)}, "list": [1, (None, tb.zeros(2, 0))]})
    content = bytearray(path.read_bytes())
    length = 8 + int.from_bytes(content[:8], "little")
    changes = st.dictionaries(st.integers(0, length - 1), HEADER_BYTES, min_size=1, max_size=6)
    for at, byte in data.draw(changes).items():
        content[at] = byte
    loads_or_is_refused(path, content[: data.draw(st.integers(0, len(content)))])
    loads_or_is_refused(path, content)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
WORDS = st.sampled_from(["dict", "list", "tuple", "__tensor__", "w", "z", ""])
HOSTILE = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=12,
)


@FUZZ
@given(structure=HOSTILE)
@example(structure={"dict": [["a", {"__tensor__": "not there"}]]})
@example(structure={"dict": {"a": 1}})
def test_a_hostile_structure(tmp_path, structure):
    header = {
        "__metadata__": {"tinybn": json.dumps(structure)},
        "w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
    }
    loads_or_is_refused(tmp_path / "x", raw_file(header, bytes(4)))


CYCLE: dict = {}
CYCLE["again"] = [CYCLE]


@pytest.mark.parametrize(
    "state",
    [
        3,
        CYCLE,
        {"n": 10**5000},
        {"__metadata__": np.ones(1)},
        {"\ud800": np.ones(1)},
        {"big": np.ones(1, ">f4")},
        {"o": np.array([None])},
        {"b": b"bytes"},
        {"s": {1, 2}},
        {None: 1},
        {1: np.ones(1), "1": np.ones(1)},
        {"a": [np.ones(1)], "a.0": np.ones(1), "epoch": 3},
        [tb.ones(1, device="cpu")],
        {"f": len},
        {"z": 1j},
        {"a": np.ones(2, np.uint8)},
        {(1, 2): 3},
        {"a.b": tb.ones(1, device="cpu"), "a": {"b": tb.ones(1, device="cpu")}},
    ],
    ids=range(18),
)
def test_what_cannot_be_saved_leaves_the_old_file(tmp_path, state):
    path = tmp_path / "x"
    tb.save(path, {"w": tb.ones(1)})
    before = path.read_bytes()
    with pytest.raises(ArgumentError):
        tb.save(path, state)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["x"]


def test_where_nothing_can_be_written(tmp_path):
    for path in (tmp_path / "no" / "x", tmp_path):
        with pytest.raises(ArgumentError, match="cannot be written"):
            tb.save(path, {})
        with pytest.raises(ArgumentError, match="cannot be written"):
            nn.check_writable(path)
    nn.check_writable(tmp_path / "x")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_read_only(tmp_path, monkeypatch):
    tmp_path.chmod(0o500)
    try:
        if os.access(tmp_path, os.W_OK):  # root writes anyway
            monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
        with pytest.raises(ArgumentError, match="is read-only"):
            tb.save(tmp_path / "x", {})
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        with pytest.raises(ArgumentError, match="is a device"):
            tb.save(tmp_path / name, {})
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_the_longest_name_that_a_file_may_have(tmp_path):
    tb.save(tmp_path / ("n" * 255), {"w": tb.ones(1)})
    assert os.listdir(tmp_path) == ["n" * 255]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch, function):
    path = tmp_path / "x"
    tb.save(path, {"w": tb.ones(1)})
    before = path.read_bytes()

    def full_disk(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, function, full_disk)
    with pytest.raises(OSError, match="No space") as caught:
        tb.save(path, {"w": tb.zeros(1)})
    assert not isinstance(caught.value, TinyBNError)
    monkeypatch.undo()
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["x"]


def test_the_file_has_an_ordinary_mode_and_a_link_stays_a_link(tmp_path):
    before = os.umask(0o027)
    try:
        tb.save(tmp_path / "real", {"w": tb.ones(1)})
        (tmp_path / "link").symlink_to(tmp_path / "real")
        tb.save(tmp_path / "link", {"w": tb.zeros(1)})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o640
    assert (tmp_path / "link").is_symlink()
    assert tb.load(tmp_path / "real")["w"].item() == 0
