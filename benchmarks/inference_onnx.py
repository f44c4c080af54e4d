"""ONNX Runtime's inference, of a model file that is written here by ``onnx.helper``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .inference_problem import Problem, Run, prepared
from .machine import CPU_THREADS

ONNX = "ONNX Runtime"
OPSET, IR = 17, 8  # of 2022, which any runtime of today reads
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class Builder:
    """Nodes of an ONNX graph, each with its parameters from a state_dict."""

    def __init__(self, state: Mapping[str, np.ndarray]) -> None:
        self._state = state
        self.nodes: list[Any] = []
        self._used: dict[str, np.ndarray] = {}

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; returns the name of its result."""
        from onnx import helper

        result = f"y{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [result], **attributes))
        return result

    def layer(self, x: str, kind: str, prefix: str, stride: int = 1) -> str:
        """A layer by the class name that PyTorch gives it, with the parameters of that prefix."""
        if kind == "Linear":
            return self.add("Gemm", x, *self._parameters(prefix, "weight", "bias"), transB=1)
        if kind == "Conv2d":
            (weight,) = self._parameters(prefix, "weight")
            size = self._state[weight].shape[-1]
            return self.add("Conv", x, weight, pads=[size // 2] * 4, strides=[stride] * 2)
        if kind.startswith("BatchNorm"):
            names = ("weight", "bias", "running_mean", "running_var")
            return self.add("BatchNormalization", x, *self._parameters(prefix, *names))
        if kind == "MaxPool2d":
            return self.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        return self.add({"ReLU": "Relu", "Flatten": "Flatten"}[kind], x)

    def normed(self, x: str, convolution: str, norm: str, stride: int = 1) -> str:
        """A convolution and its BatchNorm."""
        return self.layer(self.layer(x, "Conv2d", convolution, stride), "BatchNorm2d", norm)

    def block(self, x: str, prefix: str, stride: int) -> str:
        """``nn.models.BasicBlock``."""
        y = self.normed(x, f"{prefix}.conv1", f"{prefix}.bn1", stride)
        y = self.normed(self.add("Relu", y), f"{prefix}.conv2", f"{prefix}.bn2")
        if f"{prefix}.downsample.0.weight" in self._state:
            x = self.normed(x, f"{prefix}.downsample.0", f"{prefix}.downsample.1", stride)
        return self.add("Relu", self.add("Add", y, x))

    def model(self, logits: str, image: Sequence[int]) -> bytes:
        """The file of the model from ``"x"`` [N, *image] to ``logits`` [N, 10]."""
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        graph = helper.make_graph(
            self.nodes, "model",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *image])],
            [helper.make_tensor_value_info(logits, TensorProto.FLOAT, ["N", 10])],
            [numpy_helper.from_array(array, name) for name, array in self._used.items()],
        )  # fmt: skip
        made = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR
        )
        onnx.checker.check_model(made, full_check=True)
        return made.SerializeToString()

    def _parameters(self, prefix: str, *names: str) -> list[str]:
        found = [f"{prefix}.{name}" for name in names]
        self._used |= {name: self._state[name] for name in found}
        return found


def onnx_file(problem: Problem) -> bytes:
    """The problem's model as an ONNX file."""
    builder = Builder(problem.state)
    x = "x"
    if problem.model == "resnet8":
        x = builder.add("Relu", builder.normed(x, "conv1", "bn1"))
        for i, stride in enumerate((1, 2, 2)):
            x = builder.block(x, f"layers.{i}", stride)
        x = builder.add("Flatten", builder.add("GlobalAveragePool", x))
        x = builder.layer(x, "Linear", "fc")
    else:
        for place, kind in enumerate(problem.layers):
            x = builder.layer(x, kind, str(place))
    return builder.model(x, problem.images.shape[2:])


class Onnx:
    """ONNX Runtime on the CPU with CPU_THREADS threads, or on the GPU in float32 without TF32.

    Raises:
        ImportError: where the provider for the device is not in the installed package.
    """

    names = (ONNX,)

    def __init__(self, device: str) -> None:
        import onnx  # noqa: F401  (to fail here where it is missing)
        import onnxruntime

        self._runtime, self._device = onnxruntime, device
        if PROVIDERS[device] not in onnxruntime.get_available_providers():
            raise ImportError(f"onnxruntime {onnxruntime.__version__} lacks {PROVIDERS[device]}")

    def versions(self) -> dict[str, str]:
        """Of what runs."""
        return {"ONNX Runtime": self._runtime.__version__}

    def build(self, problem: Problem, name: str) -> Run:
        """Make a session and run it on the whole pool."""
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = CPU_THREADS
        provider: Any = PROVIDERS[self._device]
        if self._device == "cuda":
            provider = (provider, {"use_tf32": "0"})
        session = self._runtime.InferenceSession(onnx_file(problem), options, providers=[provider])
        if session.get_providers()[0] != PROVIDERS[self._device]:  # it falls back by itself
            raise RuntimeError(f"{PROVIDERS[self._device]} did not start")
        if self._device == "cuda":
            return self._bound(session, problem)

        def forward(images: Any) -> Any:
            return session.run(None, {"x": images})[0]

        return prepared(forward, list(problem.images), lambda: None, np.asarray)

    def _bound(self, session: Any, problem: Problem) -> Run:
        """A Run with inputs and outputs in GPU memory; each call waits for nothing."""
        bindings = []
        for images in problem.images:
            binding = session.io_binding()
            value = self._runtime.OrtValue.ortvalue_from_numpy(images, self._device, 0)
            binding.bind_ortvalue_input("x", value)
            binding.bind_output(session.get_outputs()[0].name, self._device)
            bindings.append(binding)
        options = self._runtime.RunOptions()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")

        def forward(binding: Any) -> Any:
            session.run_with_iobinding(binding, options)
            return binding

        def wait() -> None:
            import cupy

            cupy.cuda.Device().synchronize()  # the provider has streams of its own

        def on_host(binding: Any) -> np.ndarray:
            wait()
            return binding.copy_outputs_to_cpu()[0]

        return prepared(forward, bindings, wait, on_host)
