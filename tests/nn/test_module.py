"""Module: registration, iteration, modes, moving, state, hooks and display."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import ArgumentError, DTypeError, StateError
from tinybn.kernels.recording import Recording, under
from tinybn.testing import FLOAT_DTYPES

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


class Net(nn.Module):
    """Something of everything: a shared layer, an integer and a temporary buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", tb.zeros((), dtype=tb.int64))
        self.register_buffer("tmp", tb.zeros(1), persistent=False)
        self.layers = nn.Sequential(
            nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2, bias=False)
        )
        self.head = self.layers[3]
        self.scale = nn.Parameter(np.ones(1, np.float32))

    def forward(self, x):
        return self.layers(x) * self.scale


# What PyTorch 2.13 gives for the same module: list(net.state_dict()) and the like.
KEYS = ["scale", "count", "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias",
        "layers.1.running_mean", "layers.1.running_var", "layers.1.num_batches_tracked",
        "layers.3.weight", "head.weight"]  # fmt: skip
PARAMETERS = ["scale", "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias",
              "layers.3.weight"]  # fmt: skip
BUFFERS = ["count", "tmp", "layers.1.running_mean", "layers.1.running_var",
           "layers.1.num_batches_tracked"]  # fmt: skip
MODULES = ["", "layers", "layers.0", "layers.1", "layers.2", "layers.3"]


def snapshot(module):
    return {key: value.numpy().copy() for key, value in module.state_dict().items()}


def assert_unchanged(module, before):
    after = snapshot(module)
    assert list(after) == list(before)
    for key in before:
        np.testing.assert_array_equal(after[key], before[key])


# Registration


def test_attributes_register_by_their_type():
    net = Net()
    assert isinstance(net.scale, nn.Parameter) and net.layers[3] is net.head
    net.note = "any"
    net.plain = tb.ones(2)  # a Tensor alone is neither parameter nor buffer
    assert [name for name, _ in net.named_parameters()] == PARAMETERS
    assert [name for name, _ in net.named_buffers()] == BUFFERS
    assert [name for name, _ in net.named_children()] == ["layers", "head"]
    del net.scale, net.tmp, net.head
    assert "scale" not in dict(net.named_parameters()) and not hasattr(net, "scale")
    assert "tmp" not in dict(net.named_buffers()) and "head.weight" not in net.state_dict()


def test_a_name_changes_kind_and_is_registered_once():
    module = nn.Module()
    module.part = nn.Parameter(np.ones(1))
    module.part = nn.ReLU()
    assert list(module.parameters()) == [] and list(module.children()) == [module.part]
    module.part = nn.Parameter(np.ones(1))
    assert list(module.children()) == [] and list(module.state_dict()) == ["part"]


def test_none_stands_for_what_is_left_out():
    module = nn.Module()
    module.register_parameter("bias", None)
    module.register_buffer("mean", None)
    module.add_module("child", None)
    assert module.bias is module.mean is module.child is None
    assert module.state_dict() == {} and [*module.parameters(), *module.children()] == []
    assert "(child): None" in repr(module)
    module.bias, module.mean = nn.Parameter(np.ones(1)), tb.ones(1)
    assert list(module.state_dict()) == ["bias", "mean"]
    module.bias = None
    assert list(module.state_dict()) == ["mean"]


@pytest.mark.parametrize("register", ["register_parameter", "register_buffer", "add_module"])
def test_registering_what_cannot_be(register):
    module = nn.Module()
    for name in ("", "a.b", 3, "forward", "training"):
        with pytest.raises(ArgumentError):
            getattr(module, register)(name, None)
    with pytest.raises(TypeError, match="x is int; wanted a"):
        getattr(module, register)("x", 3)
    assert not hasattr(module, "x")


def test_register_parameter_wants_a_parameter():
    with pytest.raises(TypeError, match="weight is Tensor; wanted a Parameter"):
        nn.Module().register_parameter("weight", tb.ones(1))


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [("scale", 1.0, "a Parameter"), ("scale", tb.ones(1), "a Parameter"), ("count", 3, "a Tensor"),
     ("layers", [], "a Module"), ("layers", tb.ones(1), "a Module")],
)  # fmt: skip
def test_a_registered_attribute_keeps_its_kind(name, value, wanted):
    net = Net()
    before = getattr(net, name)
    with pytest.raises(TypeError, match=f"{name} is a .* wanted {wanted}"):
        setattr(net, name, value)
    assert getattr(net, name) is before


def test_a_buffer_may_be_replaced_by_a_tensor():
    net = Net()
    net.count = tb.tensor(5)
    assert net.state_dict()["count"].item() == 5


@pytest.mark.parametrize(
    "use",
    [
        lambda m: setattr(m, "weight", nn.Parameter(np.ones(1))),
        lambda m: setattr(m, "child", nn.ReLU()),
        lambda m: m.register_buffer("mean", tb.ones(1)),
        lambda m: m.state_dict(),
        lambda m: m(tb.ones(1)),
        lambda m: m.training,
    ],
)
def test_use_before_init_says_so(use):
    class Early(nn.Module):
        def __init__(self):
            use(self)

        def forward(self, x):
            return x

    with pytest.raises(AttributeError, match=r"Early is used before .* super\(\).__init__\(\)"):
        Early()


def test_an_unknown_attribute():
    with pytest.raises(AttributeError, match="Net has no attribute 'wieght'"):
        _ = Net().wieght
    with pytest.raises(AttributeError):
        del Net().wieght
    with pytest.raises(NotImplementedError, match="Module defines no forward"):
        nn.Module()(1)


# Iteration


def test_what_is_shared_comes_once():
    net = Net()
    assert [name for name, _ in net.named_modules()] == MODULES
    assert len(list(net.modules())) == 6 and len(list(net.parameters())) == len(PARAMETERS)
    assert [n for n, _ in net.named_modules(remove_duplicate=False)] == [*MODULES, "head"]
    twice = [n for n, _ in net.named_parameters(remove_duplicate=False)]
    assert twice == [*PARAMETERS, "head.weight"]
    net.copy = net.scale  # the same Parameter under two names
    assert [n for n, _ in net.named_parameters()] == PARAMETERS
    net.second = net.layers  # the same child under two names
    assert [n for n, _ in net.named_children()] == ["layers", "head"]


def test_prefix_and_recurse():
    net = Net()
    assert [n for n, _ in net.named_parameters("a", recurse=False)] == ["a.scale"]
    assert [n for n, _ in net.named_buffers("a.b", recurse=False)] == ["a.b.count", "a.b.tmp"]
    assert [n for n, _ in net.named_modules(prefix="a")][:3] == ["a", "a.layers", "a.layers.0"]
    assert list(net.parameters(recurse=False)) == [net.scale] and len(list(net.buffers(False))) == 2


def test_apply_goes_children_first():
    net = Net()
    seen = []
    assert net.apply(seen.append) is net
    want = [*net.layers, net.layers, net.head, net]  # as in PyTorch, the shared one twice
    assert len(seen) == len(want) and all(a is b for a, b in zip(seen, want))


# Modes and gradients


def test_train_and_eval_go_down_and_return_self():
    net = Net()
    assert all(m.training for m in net.modules())
    assert net.eval() is net and not any(m.training for m in net.modules())
    net.layers.train()
    assert not net.training and net.layers[1].training and net.head.training
    assert net.train() is net and all(m.training for m in net.modules())
    assert net.train(False) is net and not any(m.training for m in net.modules())


def test_requires_grad_and_zero_grad():
    net = Net()
    assert net.requires_grad_(False) is net and not any(p.requires_grad for p in net.parameters())
    assert net(tb.ones(4, 3)).requires_grad is False
    net.requires_grad_()
    net(tb.randn(4, 3)).sum().backward()
    grads = [p.grad for p in net.parameters()]
    assert all(g is not None for g in grads)
    net.zero_grad(set_to_none=False)
    assert all(p.grad is g and not g.numpy().any() for p, g in zip(net.parameters(), grads))
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    net.zero_grad(set_to_none=False)
    assert all(p.grad is None for p in net.parameters())


# Moving


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_to_dtype_keeps_the_objects_and_integer_buffers(dtype):
    net = Net()
    net(tb.randn(4, 3)).sum().backward()
    net.count += 3
    objects = [*net.parameters(), *net.buffers()]
    values = [t.detach().numpy().copy() for t in objects]
    grads = [(p.grad, p.grad.numpy().copy()) for p in net.parameters()]
    assert net.to(dtype) is net
    assert all(a is b for a, b in zip(objects, [*net.parameters(), *net.buffers()]))
    assert (net.count.dtype, net.count.item()) == (tb.int64, 3)
    assert net.layers[1].num_batches_tracked.dtype == tb.int64
    assert net.tmp.dtype == net.scale.dtype == net.head.weight.dtype == dtype
    wide = dtype if dtype == tb.float64 else tb.float32
    assert net.layers[1].running_mean.dtype == net.layers[1].weight.dtype == wide
    for tensor, before in zip(objects, values):
        np.testing.assert_array_equal(tensor.detach().numpy(), before.astype(tensor.dtype))
    for param, (grad, before) in zip(net.parameters(), grads):
        assert param.grad is grad and grad.dtype == param.dtype and param.requires_grad
        np.testing.assert_array_equal(grad.numpy(), before.astype(param.dtype))


def test_the_shorthands():
    net = Net()
    for call, dtype in (
        (net.double, tb.float64),
        (net.half, tb.float16),
        (net.bfloat16, tb.bfloat16),
        (net.float, tb.float32),
    ):
        assert call() is net and net.scale.dtype == dtype
    assert net.cpu() is net and str(net.scale.device) == "cpu"
    assert net.to(tb.ones(1, dtype=tb.float64)).scale.dtype == tb.float64
    assert net.to("cpu", tb.float32).scale.dtype == tb.float32
    assert net.to(dtype="float64", device="cpu").scale.dtype == tb.float64


@DEVICES
def test_to_device_keeps_the_objects_an_optimiser_holds(device):
    net = Net()
    optimizer = nn.optim.SGD(net.parameters(), lr=1.0, momentum=0.9)
    objects = [*net.parameters(), *net.buffers()]
    net(tb.randn(4, 3)).sum().backward()
    optimizer.step()
    assert net.to(device) is net
    assert all(a is b for a, b in zip(objects, [*net.parameters(), *net.buffers()]))
    place = tb.empty(1, device=device).device
    assert all(t.device == place for t in objects)
    assert all(p.grad.device == place for p in net.parameters())
    before = net.scale.item()
    net(tb.randn(4, 3, device=device)).sum().backward()
    optimizer.step()
    assert net.scale.item() != before and net.scale.device == place
    assert (net.count.dtype, net.cpu().count.item()) == (tb.int64, 0)
    if device == "cuda":
        assert net.cuda().scale.device == net.cuda(0).scale.device == place


def test_moving_where_nothing_moves_keeps_the_memory():
    net = Net()
    memory = [t.data for t in (*net.parameters(), *net.buffers())]
    net.to("cpu").to(tb.float32).float()
    assert all(t.data is m for t, m in zip((*net.parameters(), *net.buffers()), memory))


@pytest.mark.parametrize("wrong", [tb.int64, tb.bool_, "int32", "tpu", "cuda:99"])
def test_to_what_is_not_there_changes_nothing(wrong):
    net = Net()
    before = snapshot(net)
    with pytest.raises((DTypeError, RuntimeError, ArgumentError)):
        net.to(wrong)
    assert net.scale.dtype == tb.float32
    assert_unchanged(net, before)


def test_a_graph_recorded_before_a_move_keeps_the_old_values():
    layer = nn.Linear(2, 1, bias=False)
    x = tb.ones(1, 2, requires_grad=True)
    y = layer(x)
    weight = layer.weight.detach().numpy().copy()
    layer.double()
    nn.init.zeros_(layer.weight)
    layer.weight.requires_grad = False
    y.backward()
    np.testing.assert_array_equal(x.grad.numpy(), weight)


# State


def test_state_dict_has_pytorchs_keys_and_shares_memory():
    net = Net()
    state = net.state_dict()
    assert list(state) == KEYS and list(net.state_dict("m.")) == ["m." + key for key in KEYS]
    assert not any(value.requires_grad for value in state.values())
    assert state["head.weight"].data is state["layers.3.weight"].data is net.head.weight.data
    nn.init.constant_(net.scale, 7.0)
    assert state["scale"].item() == 7
    state["scale"].fill_(8.0)
    assert net.scale.item() == 8


def test_a_deep_copy_of_the_state_keeps_a_moment():
    net = Net()
    kept = copy.deepcopy(net.state_dict())
    before = snapshot(net)
    net(tb.randn(4, 3)).sum().backward()
    nn.optim.SGD(net.parameters(), lr=1.0).step()
    assert net.layers[1].num_batches_tracked.item() == 1
    for key, value in kept.items():
        np.testing.assert_array_equal(value.numpy(), before[key])
    net.load_state_dict(kept)
    assert_unchanged(net, before)


def test_load_copies_into_the_objects_an_optimiser_holds():
    net, other = Net(), Net()
    other(tb.randn(5, 3) + 2.0)
    optimizer = nn.optim.SGD(net.parameters(), lr=1.0)
    objects = [(t, t.data) for t in (*net.parameters(), *net.buffers())]
    assert net.load_state_dict(other.state_dict()) == ([], [])
    assert_unchanged(net, snapshot(other))
    after = (*net.parameters(), *net.buffers())
    assert all(t is u and t.data is data for (t, data), u in zip(objects, after))
    assert not np.shares_memory(net.scale.data, other.scale.data)
    before = net.scale.item()
    net(tb.randn(4, 3)).sum().backward()
    optimizer.step()
    assert net.scale.item() != before and other.scale.item() == before


def test_load_takes_arrays_and_keeps_dtype():
    net = Net().half()
    state = {key: value.astype(np.float64) for key, value in snapshot(Net()).items()}
    state = {k: v.astype(np.int32) if v.ndim == 0 else v for k, v in state.items()}
    net.load_state_dict(state)
    assert (net.scale.dtype, net.count.dtype) == (tb.float16, tb.int64)
    np.testing.assert_array_equal(
        net.head.weight.detach().numpy(), state["head.weight"].astype(np.float16)
    )


def test_a_strict_load_lists_all_that_does_not_fit_and_changes_nothing():
    net = Net()
    before = snapshot(net)
    state = {key: np.ones_like(value) for key, value in before.items()}
    del state["layers.0.bias"], state["count"]
    state["layers.9.weight"] = np.ones(1)
    state["scale"] = np.ones((1, 1), np.float32)
    with pytest.raises(StateError, match="does not fit Net") as error:
        net.load_state_dict(state)
    message = str(error.value)
    assert "scale has shape (1, 1), wanted (1,)" in message
    assert "missing: count, layers.0.bias" in message and "unexpected: layers.9.weight" in message
    assert "head" not in message and isinstance(error.value, RuntimeError)
    assert_unchanged(net, before)


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda s: s.pop("layers.1.num_batches_tracked"), "missing: layers.1.num_batches_tracked"),
        (lambda s: s.update(extra=np.ones(1)), "unexpected: extra"),
        (lambda s: s.update(tmp=np.ones(1)), "unexpected: tmp"),
        (lambda s: s.update(count=np.ones(1, np.int64)), r"count has shape \(1,\), wanted \(\)"),
        (lambda s: s.update(count=np.array(1.5)), "count has dtype float64, wanted int64"),
    ],
)
def test_each_fault_alone_changes_nothing(spoil, match):
    net = Net()
    before = snapshot(net)
    state = {key: value + 1 for key, value in before.items()}
    spoil(state)
    with pytest.raises(StateError, match=match):
        net.load_state_dict(state)
    assert_unchanged(net, before)


def test_a_load_that_is_not_strict_takes_what_is_there():
    net = Net()
    before = snapshot(net)
    result = net.load_state_dict({"scale": np.array([3.0]), "other": np.ones(1)}, strict=False)
    assert result.missing_keys == KEYS[1:] and result.unexpected_keys == ["other"]
    assert net.scale.item() == 3
    assert_unchanged(net, {**before, "scale": np.array([3.0])})
    with pytest.raises(StateError, match="scale has shape"):  # a misfit is one even then
        net.load_state_dict({"count": np.array(4), "scale": np.ones(2)}, strict=False)
    assert_unchanged(net, {**before, "scale": np.array([3.0])})


def test_a_load_counts_a_write():
    layer = nn.Linear(2, 2, bias=False)
    y = layer(tb.ones(1, 2, requires_grad=True)).sum()
    layer.load_state_dict(layer.state_dict())
    with pytest.raises(RuntimeError, match="written in place"):
        y.backward()


def test_a_buffer_that_does_not_persist():
    net = Net()
    net.tmp += 5
    assert "tmp" not in net.state_dict() and net.load_state_dict(Net().state_dict()) == ([], [])
    assert net.tmp.item() == 5
    net.register_buffer("tmp", tb.ones(1))
    assert "tmp" in net.state_dict()


# Copies


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"]
)
def test_copies_are_whole_and_independent(duplicate):
    net = Net().eval()
    net.tmp += 2
    twin = duplicate(net)
    assert type(twin) is Net and not twin.training and twin.tmp.item() == 2
    assert twin.head is twin.layers[3] and twin.head is not net.head
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in twin.parameters())
    x = tb.randn(4, 3)
    np.testing.assert_array_equal(twin(x).data, net(x).data)
    before = snapshot(net)
    twin.train()(x).sum().backward()
    nn.optim.SGD(twin.parameters(), lr=1.0).step()
    assert_unchanged(net, before)
    assert net.scale.grad is None and not net.training
    assert [name for name, _ in twin.named_parameters()] == PARAMETERS
    assert list(twin.state_dict()) == KEYS


# Hooks and display


def test_forward_hooks_see_and_may_replace_the_output():
    layer = nn.ReLU()
    seen = []
    first = layer.register_forward_hook(lambda m, args, out: seen.append((m, args, out)))
    second = layer.register_forward_hook(lambda m, args, out: out * 2)
    third = layer.register_forward_hook(lambda m, args, out: out + 1)
    x = tb.tensor([-1.0, 3.0])
    np.testing.assert_array_equal(layer(x).numpy(), [1, 7])
    (module, args, out) = seen[0]
    assert module is layer and len(args) == 1 and args[0] is x
    np.testing.assert_array_equal(out.numpy(), [0, 3])
    second.remove()
    second.remove()
    np.testing.assert_array_equal(layer(x).numpy(), [1, 4])
    first.remove(), third.remove()
    np.testing.assert_array_equal(layer(x).numpy(), [0, 3])
    assert len(seen) == 2


def test_a_hook_may_remove_itself():
    layer, calls = nn.Identity(), []

    def once(module, args, output):
        calls.append(1)
        handle.remove()

    handle = layer.register_forward_hook(once)
    layer.register_forward_hook(lambda module, args, output: calls.append(2))
    layer(1), layer(1)
    assert calls == [1, 2, 2]


def test_keyword_arguments_reach_forward():
    class Scale(nn.Module):
        def forward(self, x, *, by=1):
            return x * by

    assert Scale()(3, by=4) == 12


def test_repr():
    assert repr(Net()) == "\n".join([
        "Net(",
        "  (layers): Sequential(",
        "    (0): Linear(in_features=3, out_features=4, bias=True)",
        f"    (1): {nn.BatchNorm1d(4)!r}",
        "    (2): ReLU()",
        "    (3): Linear(in_features=4, out_features=2, bias=False)",
        "  )",
        "  (head): Linear(in_features=4, out_features=2, bias=False)",
        ")",
    ])  # fmt: skip

    class Named(Net):
        def extra_repr(self):
            return "width=4"

    assert repr(Named()).startswith("Named(\n  width=4\n  (layers): Sequential(\n")
    assert repr(nn.Module()) == "Module()"


def test_a_parameter_copies_its_data_into_c_order():
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    param = nn.Parameter(array)
    array[...] = 0
    assert param.data.flags.c_contiguous and param.detach().numpy().sum() == 15
    assert param.requires_grad and param.is_leaf
    assert not nn.Parameter(array, requires_grad=False).requires_grad
    assert nn.Parameter([1.0, 2.0], dtype=tb.float64).dtype == tb.float64
    source = tb.ones(2, requires_grad=True)
    assert nn.Parameter(source * 2).is_leaf
    assert repr(nn.Parameter([1.0])) == ("Parameter containing:\ntensor([1.], requires_grad=True)")
    with pytest.raises(DTypeError):
        nn.Parameter([1, 2])
    assert nn.Parameter([1, 2], requires_grad=False).dtype == tb.int64


CHANGES = {
    "layer": lambda model: model.__setitem__(1, nn.Linear(4, 4)),
    "one more": lambda model: model.append(nn.Identity()),
    "parameter": lambda model: setattr(model[3], "bias", nn.Parameter(tb.ones(2))),
    "no parameter": lambda model: setattr(model[1], "bias", None),
    "deleted": lambda model: delattr(model[1], "bias"),
    "dtype": lambda model: model.to(tb.float64),
    "option": lambda model: setattr(model[2], "p", 0.1),
    "mode": lambda model: model.eval(),
    "frozen": lambda model: model[0].freeze(),
    "hook": lambda model: model[1].register_forward_hook(lambda *given: None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_recorded_step_is_good_until_its_modules_change(name):
    layers = [nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2, bias=False)]
    model = nn.Sequential(*layers)
    recorded = Recording(capturing=False)
    recorded.capturing = True  # as on a GPU: what guards is kept
    with under(recorded):
        model(tb.ones(3, 4))
    model.train()
    model.load_state_dict(model.state_dict())
    assert recorded.is_good()
    CHANGES[name](model)
    assert not recorded.is_good()


def test_what_a_forward_sets_changes_nothing_recorded():
    class Counting(nn.Module):
        def forward(self, x):
            self.seen = x
            return x

    model, recorded = Counting(), Recording(capturing=False)
    recorded.capturing = True
    with under(recorded):
        model(tb.ones(2))
    assert recorded.is_good()
