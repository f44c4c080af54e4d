"""Every kernel compiles for the GPUs that we support, in each dtype, without spills."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tinybn import kernels
from tinybn.errors import ArgumentError
from tinybn.kernels.arrays import BFLOAT16
from tinybn.kernels.conv.objects import Conv2dForward
from tinybn.kernels.engines import OBJECTS, kernel_class
from tinybn.kernels.feed.objects import RECEIVER, WORDS, Fetch
from tinybn.kernels.feed.ring import SLOTS
from tinybn.kernels.launch import Options
from tinybn.kernels.windows import Windows

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
DTYPES = (np.float32, BFLOAT16, np.float16, np.float64)


# Shapes that choose other code: each family of plan.py; classes in several blocks.
SHAPES = {
    "batch_norm": [
        (64, 256, 7, 7),
        (512, 1024),
        (2, 1),
        (4096, 512),
        (8192, 4096),
        (64, 16, 28, 28),
        (8, 64, 112, 112),
        (64, 2, 112, 112),
    ],
    "cross_entropy": [(64, 10), (3, 2500)],
    "conv": [(8, 16, 14, 14), (128, 32, 14, 14), (128, 1, 28, 28)],
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", OBJECTS)
def test_compiles_without_spills(name, target):
    shapes = SHAPES.get(OBJECTS[name], [None])
    for dtype, shape in [*((d, shapes[0]) for d in DTYPES), *((np.float32, s) for s in shapes[1:])]:
        binary = kernel_class(name)().compile(target, dtype, shape)
        assert binary.spills == 0, (name, target, dtype, shape, binary.spills)
        assert 0 < binary.registers <= (512 if target.startswith("gfx") else 255)
        # Launches ask for what they need; the least that a supported GPU has is sm_86's 99 KB.
        assert binary.shared <= (64 if target.startswith("gfx") else 99) * 1024
        assert binary.assembly


@pytest.mark.parametrize(
    "finish",
    [(False, None), (True, None), (False, "relu"), (True, "relu"), (True, "silu")],
    ids=str,
)
@pytest.mark.parametrize("name", ["Matmul", "Conv2dForward"])
def test_each_end_of_a_product_compiles_without_spills(name, finish):
    """The examples above have an addend and GELU, the longest."""
    adds, activation = finish
    kernel = kernel_class(name)()
    for target in ("sm_80", "sm_90"):
        for dtype in (np.float32, np.float16):
            for arguments, options in kernel.launches(np.dtype(dtype), kernel.example_shape):
                kept = arguments["addend_ptr"] if adds else None
                arguments = {**arguments, "addend_ptr": kept, "ACTIVATION": activation}
                assert kernel.launcher.compile(target, arguments, options).spills == 0


@pytest.mark.parametrize("target", TARGETS)
def test_a_slot_of_the_hosts_ring_is_read_by_one_warp(target):
    """Each read of the host's memory takes a microsecond and waits for the one before."""
    words = np.zeros(3, np.int64)
    arguments = dict(ring_ptr=words, inbox_ptr=words, SLOTS=SLOTS, BLOCK=WORDS)
    binary = Fetch.receiver.compile(target, arguments, RECEIVER)
    assert binary.spills == 0
    if target.startswith("sm"):
        assert ".reqntid 32" in binary.assembly and "ld.volatile.global" in binary.assembly


def test_contiguous_channels_are_read_16_bytes_at_a_time():
    kernel = kernels.BatchNormNormalizeForward()
    ptx = kernel.compile("sm_90", np.float32, (512, 1024)).assembly
    assert re.search(r"ld\.global[.\w]*\.v4", ptx)


def test_name_and_source():
    kernel = kernels.BatchNormBackward()
    assert kernel.name == "batch_norm_backward_kernel"
    assert "def batch_norm_backward_kernel" in kernel.source


def test_unknown_target():
    with pytest.raises(ArgumentError, match="sm_90"):
        kernels.Dropout().compile("sm_1")


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_warp_of_a_convolution_reads_and_writes_what_lies_side_by_side(channels_last):
    """In NCHW pixels, of which no Triton knows by itself that they do, else channels."""
    x, y = (np.zeros((8, c, 14, 14), np.float32) for c in (32, 64))
    if channels_last:
        x, y = (np.moveaxis(np.moveaxis(a, 1, -1).copy(), -1, 1) for a in (x, y))
    slid = Windows((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    kernel = Conv2dForward()
    weight = np.zeros((64, 32, 3, 3), np.float32)
    arguments = kernel._arguments(x, weight, None, y, slid, 1, False) | {"UPCAST": False}
    code = kernel.launcher._compiled("sm_90", arguments, Options(warps=4)).asm["ttgir"]
    threads = dict(re.findall(r"^(#\w+) = .*threadsPerWarp = (\[[\d, ]+\])", code, re.M))
    used = re.findall(
        r"(?:async_copy_global_to_local %x\w*|tt\.store %\w+),.*?(#blocked\w*)>", code
    )
    assert len(used) >= 2
    for layout in used:
        assert (threads[layout] == "[32, 1]") != channels_last, (layout, threads[layout])
