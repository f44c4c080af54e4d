"""Compile a Triton kernel, cache it, and launch it on arrays: no torch, no C compiler.

Triton compiles a kernel to a cubin for a target given by name, which needs
neither a GPU nor a driver; CuPy loads the cubin and launches it on its current
stream. The launcher that Triton would build with gcc is not used.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import ArgumentError, DeviceError, LaunchError
from .. import gpu
from . import observe
from .arguments import ALIGNMENT, LETTERS, ON_HOST, describe
from .interpreter import interpreter_lock, run_interpreted
from .options import DEFAULT, Binary, Options
from .prepared import Prepared

_TARGETS = {"sm_80": 80, "sm_90": 90, "sm_100": 100}


class Launcher:
    """One ``@triton.jit`` function and all that was compiled from it.

    A call names the grid and, by keyword, every parameter of the function:
    arrays; integers, which are specialised on as Triton does (1, multiples of 16);
    ``numpy.float32``, ``float64``, ``int32`` and ``int64`` scalars, which are not; None for
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
        observer = observe.current()
        if observer is not None:
            _, packed = self._kinds(values, ON_HOST if device is None else device)
            launch = observe.Launch(self.fn.__name__, arguments, grid, options, tuple(packed))
            observer.see(launch, lambda: self._start(grid, options, values, device))
            return
        self._start(grid, options, values, device)

    def _start(
        self, grid: tuple[int, ...], options: Options, values: list[Any], device: int | None
    ) -> None:
        if device is None:
            run_interpreted(self.fn, self.names, self.constexprs, grid, values)
            return
        with gpu.on_device(device):
            (function, shared, scratch), packed = self._loaded_for(device, options, values)
            x, y, z = (*grid, 1, 1)[:3]
            function(
                (x, y, z), (options.warps * 32,), (*packed, *scratch), shared,
                enable_cooperative_groups=options.cooperative,
            )  # fmt: skip

    def prepare(
        self, grid: tuple[int, ...], options: Options, arguments: Mapping[str, Any],
        varying: Sequence[str],
    ) -> Prepared:  # fmt: skip
        """A launch that is called with the addresses of the arrays named in ``varying`` alone.

        The arrays given here stand for those to come: of their dtype and alignment. Of
        ``varying`` those that are None here stay so, and a call gives no address for them.
        """
        values = self._values(arguments)
        device = next(v.data.device_id for v in values if gpu.is_cupy(v))
        with gpu.on_device(device):
            (function, shared, scratch), packed = self._loaded_for(device, options, values)
        passed = [
            (name, value) for name, value in zip(self.names, values)
            if name not in self.constexprs and isinstance(describe(value)[0][0], str)
        ]  # fmt: skip
        names = [name for name, _ in passed]
        letters = [LETTERS.get(describe(value)[0][0], "Q") for _, value in passed]
        return Prepared(
            device, function, shared, grid, options,
            [*zip(letters, packed), *(("Q", pointer) for pointer in scratch)],
            [names.index(name) for name in varying if name in names],
        )  # fmt: skip

    def _loaded_for(
        self, device: int, options: Options, values: Sequence[Any]
    ) -> tuple[tuple[Callable, int, tuple[int, ...]], list]:
        """The kernel for these arguments, and what of them its entry is passed."""
        kinds, packed = self._kinds(values, device)
        loaded = self._loaded.get((device, options, kinds))
        return loaded or self._load(device, options, kinds, values, len(packed)), packed

    def _values(self, arguments: Mapping[str, Any]) -> list[Any]:
        if len(arguments) != len(self.names) or any(n not in arguments for n in self.names):
            missing = [name for name in self.names if name not in arguments]
            unknown = [name for name in arguments if name not in self.names]
            raise ArgumentError(
                f"{self.fn.__name__} lacks the arguments {missing} and has no {unknown}; wanted "
                f"{', '.join(self.names)}"
            )
        return [arguments[name] for name in self.names]

    def _kinds(self, values: Sequence[Any], device: int | None) -> tuple[tuple, list]:
        """What of the arguments changes the code, and what the compiled entry is passed."""
        kinds: list[Any] = []
        packed = []
        for name, value in zip(self.names, values):
            if name in self.constexprs:
                kinds.append(value)
                continue
            kind, argument, place = describe(value)
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
        compiled = self._compiled(target, arguments, options)
        if "amdgcn" in compiled.asm:
            text = compiled.asm["amdgcn"]
            count = {k: int(v) for k, v in re.findall(r"\.(\w+_(?:spill_)?count):\s*(\d+)", text)}
            # Scalar registers that do not fit go to vector registers, not to memory.
            spills = count["vgpr_spill_count"]
            return Binary(target, text, count["vgpr_count"], compiled.metadata.shared, spills)
        registers, local = _resources(compiled.asm["cubin"])
        ptx = compiled.asm["ptx"]
        return Binary(target, ptx, registers, compiled.metadata.shared, local)

    def _compiled(self, target: str, arguments: Mapping[str, Any], options: Options) -> Any:
        """What Triton makes for ``target``, at all its stages."""
        values = self._values(arguments)
        kinds, _ = self._kinds(values, ON_HOST)
        return self._build(_target(target), options, kinds, values)

    def _load(
        self, device: int, options: Options, kinds: tuple, values: Sequence[Any], arguments: int
    ) -> tuple:
        """Compile and load, once; returns the function, its shared memory and scratch pointers."""
        with self._lock:
            if (device, options, kinds) in self._loaded:
                return self._loaded[device, options, kinds]
            from cupy.cuda import Device, driver
            from cupy.cuda.function import Module

            capability = int(Device(device).compute_capability)
            compiled = self._build(_cuda_target(capability), options, kinds, values)
            module = Module()
            module.load(compiled.asm["cubin"])
            function = module.get_function(compiled.metadata.name)
            shared = compiled.metadata.shared
            if shared > 48 * 1024:  # more than every device allows without asking
                driver.funcSetAttribute(
                    function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared
                )
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

        def compiled(ceiling: int) -> Any:
            settings = {
                "num_warps": options.warps,
                "num_stages": options.stages,
                "enable_fp_fusion": True,  # named because Triton 3.10 flips the default
                "maxnreg": ceiling,
            }
            try:
                with interpreter_lock:  # triton.language is patched while another interprets
                    return triton.compile(source, target=target, options=settings)
            except Exception as error:  # Triton raises many types; the caller wants one
                raise LaunchError(
                    f"Triton could not compile {self.fn.__name__}: {error}"
                ) from error

        result = compiled(options.registers)
        if options.lifted is not None and "cubin" in result.asm:
            _, spilled = _resources(result.asm["cubin"])
            if spilled:
                return compiled(options.lifted)
        return result


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
    import subprocess  # these three take as long to import as the whole package
    import tempfile
    from pathlib import Path

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
