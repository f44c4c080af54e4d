"""Compile a Triton kernel, cache it, and launch it on arrays: no torch, no C compiler.

With gpu.py, which asks for devices, the only file that knows Triton's and
CuPy's internals. Triton compiles a kernel
to a cubin for a target given by name, which needs neither a GPU nor a driver;
CuPy loads the cubin and launches it on its current stream. The launcher that
Triton would build with gcc is not used. The same kernel runs without a GPU
through Triton's interpreter (:func:`interpret`), on NumPy arrays.

Triton 3.6 to 3.9.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import ArgumentError, DeviceError, DTypeError, LaunchError
from . import gpu
from .arrays import BFLOAT16, Array

_POINTER_TYPES = {
    np.dtype("float16"): "*fp16",
    BFLOAT16: "*bf16",
    np.dtype("float32"): "*fp32",
    np.dtype("float64"): "*fp64",
    np.dtype("int32"): "*i32",
    np.dtype("int64"): "*i64",
    np.dtype("uint32"): "*u32",
    np.dtype("bool"): "*i1",
}
# Scalars of a fixed type, whose value never changes the code.
_SCALAR_TYPES = {np.float32: "fp32", np.float64: "fp64", np.int32: "i32", np.int64: "i64"}
_TARGETS = {"sm_80": 80, "sm_90": 90, "sm_100": 100}
ON_HOST = -1  # beside the numbers of the GPUs
ALIGNMENT = 16  # bytes, or elements of an integer: what Triton needs for its widest loads


@dataclass(frozen=True)
class Options:
    """How a kernel is compiled and launched, apart from its arguments.

    Attributes:
        warps: 32 threads each, in a program.
        registers: the most that a thread may use. Given no ceiling, ptxas
            spills a few to fit one more program on a multiprocessor.
        cooperative: the programs wait for each other, so all must run at once;
            the driver refuses a launch whose programs would not fit.
    """

    warps: int = 4
    registers: int = 168
    cooperative: bool = False


DEFAULT = Options()


@dataclass(frozen=True)
class Binary:
    """A kernel compiled for one target, with what its compiler reports.

    Attributes:
        target: such as ``"sm_90"`` or ``"gfx942"``.
        assembly: the PTX, or for AMD the GCN assembly.
        registers: registers a thread.
        shared: bytes of shared memory a block.
        spills: bytes (NVIDIA) or registers (AMD) that did not fit and went to memory.
    """

    target: str
    assembly: str
    registers: int
    shared: int
    spills: int


class Launcher:
    """One ``@triton.jit`` function and all that was compiled from it.

    A call names the grid and, by keyword, every parameter of the function:
    arrays; integers, which are specialised on as Triton does (1, multiples of 16);
    ``numpy.float32``, ``float64`` and ``int64`` scalars, which are not; None for
    a pointer that is not there; and the ``tl.constexpr`` values.
    """

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        code = fn.fn.__code__
        self.names: tuple[str, ...] = code.co_varnames[: code.co_argcount]
        annotations = fn.fn.__annotations__
        self.constexprs = frozenset(n for n in self.names if "constexpr" in str(annotations.get(n)))
        self._loaded: dict[tuple, tuple[Callable, int, tuple[int, ...]]] = {}
        self._lock = threading.Lock()

    def __call__(self, grid: tuple[int, ...], options: Options = DEFAULT, **arguments: Any) -> None:
        """Run the kernel on ``grid`` programs, on the engine that the arrays and context choose."""
        if 0 in grid:
            return
        values = self._values(arguments)
        device = next((v.data.device_id for v in values if gpu.is_cupy(v)), None)
        if device is None:
            _interpret(self.fn, self.names, self.constexprs, grid, values)
            return
        kinds, packed = self._describe(values, device)
        with gpu.on_device(device):
            loaded = self._loaded.get((device, options, kinds))
            function, shared, scratch = loaded or self._load(
                device, options, kinds, values, len(packed)
            )
            x, y, z = (*grid, 1, 1)[:3]
            function(
                (x, y, z), (options.warps * 32,), (*packed, *scratch), shared,
                enable_cooperative_groups=options.cooperative,
            )  # fmt: skip

    def _values(self, arguments: Mapping[str, Any]) -> list[Any]:
        if len(arguments) != len(self.names) or any(n not in arguments for n in self.names):
            missing = [name for name in self.names if name not in arguments]
            unknown = [name for name in arguments if name not in self.names]
            raise ArgumentError(
                f"{self.fn.__name__} lacks the arguments {missing} and has no {unknown}; wanted "
                f"{', '.join(self.names)}"
            )
        return [arguments[name] for name in self.names]

    def _describe(self, values: Sequence[Any], device: int | None) -> tuple[tuple, list]:
        """What of the arguments changes the code, and what the compiled entry is passed."""
        kinds: list[Any] = []
        packed = []
        for name, value in zip(self.names, values):
            if name in self.constexprs:
                kinds.append(value)
                continue
            kind, argument, place = _describe(value)
            if kind[0].__class__ is str:
                packed.append(argument)
                if place != device and place is not None:
                    raise DeviceError(
                        f"{self.fn.__name__} was given {name} on "
                        f"{'the CPU' if place < 0 else f'cuda:{place}'}; wanted cuda:{device}"
                    )
            kinds.append(kind)
        return tuple(kinds), packed

    def compile(
        self, target: str, arguments: Mapping[str, Any], options: Options = DEFAULT
    ) -> Binary:
        """Compile for ``target`` with arguments of these types; needs no GPU.

        Args:
            target: ``"sm_80"``, ``"sm_90"``, ``"sm_100"`` or an AMD name such as ``"gfx942"``.
            arguments: as for a launch; of the arrays only dtype and alignment count.

        Raises:
            ArgumentError: for a target that is not one of these, or other arguments.
            DTypeError: for an argument that no kernel takes.
            LaunchError: if Triton cannot compile it, with Triton's reason.
        """
        values = self._values(arguments)
        kinds, _ = self._describe(values, ON_HOST)
        compiled = self._build(_target(target), options, kinds, values)
        if "amdgcn" in compiled.asm:
            text = compiled.asm["amdgcn"]
            count = {k: int(v) for k, v in re.findall(r"\.(\w+_(?:spill_)?count):\s*(\d+)", text)}
            # Scalar registers that do not fit go to vector registers, not to memory.
            spills = count["vgpr_spill_count"]
            return Binary(target, text, count["vgpr_count"], compiled.metadata.shared, spills)
        registers, local = _resources(compiled.asm["cubin"])
        ptx = compiled.asm["ptx"]
        return Binary(target, ptx, registers, compiled.metadata.shared, local)

    def _load(
        self, device: int, options: Options, kinds: tuple, values: Sequence[Any], arguments: int
    ) -> tuple:
        """Compile and load, once; returns the function, its shared memory and scratch pointers."""
        with self._lock:
            if (device, options, kinds) in self._loaded:
                return self._loaded[device, options, kinds]
            from cupy.cuda import Device
            from cupy.cuda.function import Module

            capability = int(Device(device).compute_capability)
            compiled = self._build(_cuda_target(capability), options, kinds, values)
            module = Module()
            module.load(compiled.asm["cubin"])
            function = module.get_function(compiled.metadata.name)
            shared = compiled.metadata.shared
            if shared > 48 * 1024:  # more than every device allows without asking
                function.max_dynamic_shared_size_bytes = shared
            # After our arguments the entry takes scratch pointers, two so far;
            # we use neither, and the PTX says how many there are.
            scratch = (0,) * (_entry_parameters(compiled.asm["ptx"]) - arguments)
            self._loaded[device, options, kinds] = (function, shared, scratch)
            return self._loaded[device, options, kinds]

    def _build(self, target: Any, options: Options, kinds: tuple, values: Sequence[Any]) -> Any:
        import triton
        from triton.compiler import ASTSource
        from triton.runtime.jit import JITFunction

        if not isinstance(self.fn, JITFunction):
            raise LaunchError(
                f"{self.fn.__name__} cannot be compiled in this process: TRITON_INTERPRET=1 was "
                "set when it was imported; start Python without it"
            )
        signature, constants, attributes = {}, {}, {}
        for i, (name, kind) in enumerate(zip(self.names, kinds)):
            if name in self.constexprs or not isinstance(kind[0], str):
                signature[name] = "constexpr"
                constants[(i,)] = values[i]
            else:
                signature[name] = kind[0]
                if kind[1]:
                    attributes[(i,)] = [["tt.divisibility", ALIGNMENT]]
        source = ASTSource(self.fn, signature, constants, attributes)
        settings = {
            "num_warps": options.warps,
            "enable_fp_fusion": True,  # named because Triton 3.10 flips the default
            "maxnreg": options.registers,
        }
        try:
            with _interpreter_lock:  # triton.language is patched while another thread interprets
                return triton.compile(source, target=target, options=settings)
        except Exception as error:  # Triton raises many types; the caller wants one
            raise LaunchError(f"Triton could not compile {self.fn.__name__}: {error}") from error


def _describe(value: Any) -> tuple[tuple, Any, int | None]:
    """An argument's kind, the value to pass, and for an array its device (ON_HOST for NumPy's).

    The kind is what changes the code: type, and whether 16 divides the address
    or integer. One that starts with a string is an argument of the compiled
    entry; any other (None, and the integer 1) is a constant in its code.
    """
    if value is None:
        return (None,), None, None
    if isinstance(value, int):
        if value == 1:
            return (1,), None, None
        return (_integer_type(value), value % ALIGNMENT == 0), value, None
    kind = _SCALAR_TYPES.get(type(value))
    if kind is not None:
        return (kind, False), value, None
    on_gpu = gpu.is_cupy(value)
    if not (on_gpu or isinstance(value, np.ndarray)) or value.dtype not in _POINTER_TYPES:
        given = getattr(value, "dtype", type(value).__name__)
        raise DTypeError(f"a kernel's argument is {given}; wanted an array, int, None or scalar")
    address = value.data.ptr if on_gpu else value.ctypes.data
    device = value.data.device_id if on_gpu else ON_HOST
    return (_POINTER_TYPES[value.dtype], address % ALIGNMENT == 0), address, device


def _integer_type(value: int) -> str:
    # Half of int32's range, so that a bound plus a tile cannot wrap around.
    return "i32" if -(2**30) <= value < 2**30 else "i64"


def _cuda_target(capability: int) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", capability, 32)


def _target(name: str) -> Any:
    from triton.backends.compiler import GPUTarget

    if name in _TARGETS:
        return _cuda_target(_TARGETS[name])
    if name.startswith("gfx9"):
        return GPUTarget("hip", name, 64)
    raise ArgumentError(
        f"target {name!r} is not known; wanted {', '.join(_TARGETS)} or an AMD name such as gfx942"
    )


def _entry_parameters(ptx: str) -> int:
    entry = ptx[ptx.index(".entry") :]
    return entry[: entry.index("{")].count(".param")


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers a thread and bytes of local memory (spills), by NVIDIA's cuobjdump."""
    from triton import backends

    tool = Path(backends.__file__).parent / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        report = subprocess.run(
            [tool, "-res-usage", path], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", report)
    if found is None:
        raise LaunchError(f"cuobjdump reported no register count: {report.strip()!r}")
    return int(found[1]), int(found[2]) + int(found[3])


# --- the interpreter -----------------------------------------------------------------------

_interpreter_lock = threading.RLock()  # it keeps the running program's grid in globals


class _Choice(threading.local):
    interpret = False


_choice = _Choice()


def interpreting() -> bool:
    """Whether kernels on NumPy arrays run in Triton's interpreter in this thread."""
    return _choice.interpret or os.environ.get("TRITON_INTERPRET") == "1"


@contextlib.contextmanager
def interpret() -> Iterator[None]:
    """A context in which ops on CPU tensors run the Triton kernels, interpreted.

    For this thread. Slow (0.1 ms a line); it shows that a kernel is right.
    ``TRITON_INTERPRET=1`` in the environment does the same for a whole process,
    which then cannot compile.
    """
    before = _choice.interpret
    _choice.interpret = True
    try:
        yield
    finally:
        _choice.interpret = before


def _interpret(
    fn: Any, names: Sequence[str], constexprs: frozenset, grid: tuple[int, ...], values: list
) -> None:
    """Run every program of ``grid`` in turn, in Python.

    Triton chooses interpreter or compiler once, when a kernel is decorated. We
    choose at each call: for its duration ``triton.language`` is patched as the
    interpreter patches it, and calls from one jitted function to another run
    the interpreter's rewrite of the callee.
    """
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    language = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    builder = interpreter.interpreter_builder
    with _interpreter_lock, np.errstate(all="ignore"):
        scope = interpreter._patch_lang(language)
        try:
            for kind in (JITFunction, interpreter.InterpretedFunction):
                scope.set_attr(kind, "__call__", lambda f, *a, **k: _rewritten(f.fn)(*a, **k))
            # Triton 3.6 turns one-element arrays into ints in a way that NumPy 2.4 refuses.
            scope.set_attr(tl.tensor, "__index__", lambda t: int(t.handle.data.item()))
            scope.set_attr(interpreter.InterpreterBuilder, "cast_impl", _cast)
            arguments = {
                name: value if name in constexprs or value is None else _as_tensor(value)
                for name, value in zip(names, values)
            }
            program = _rewritten(fn.fn)
            x, y, z = (*grid, 1, 1)[:3]
            builder.set_grid_dim(x, y, z)
            for index in np.ndindex(x, y, z):
                builder.set_grid_idx(*index)
                program(**arguments)
        finally:
            scope.restore()


def _rewritten(function: Callable) -> Callable:
    from triton.runtime.interpreter import InterpretedFunction

    return InterpretedFunction(function).rewrite()


def _as_tensor(value: Any) -> Any:
    """An argument as the interpreter's scalar: a pointer, an integer or a float."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if isinstance(value, int):
        kind = _integer_type(value)
        data = np.array([value], np.int32 if kind == "i32" else np.int64)
    else:
        (kind, _), argument, _ = _describe(value)
        data = np.array([argument], np.uint64 if isinstance(value, np.ndarray) else None)
    dtype = tl.str_to_ty(kind, None)
    return tl.core.tensor(TensorHandle(data, dtype), dtype)


def _cast(builder: Any, source: Any, target: Any) -> Any:
    """The interpreter's cast, with bfloat16 rounded to nearest even; it truncates.

    The interpreter keeps bfloat16 as its 16 bits.
    """
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype

    data, dtype = source.data, target.scalar
    if source.dtype.scalar == tl.bfloat16:
        data = data.view(ml_dtypes.bfloat16)
    if dtype == tl.bfloat16:
        return TensorHandle(data.astype(ml_dtypes.bfloat16).view(np.uint16), dtype)
    return TensorHandle(data.astype(_get_np_dtype(target)), dtype)


def pointer(array: Array) -> int:
    """The address of the array's first element."""
    return array.data.ptr if gpu.is_cupy(array) else array.ctypes.data
