"""The shortest program that gets one result of a trained MLP: what `inference --device cpu` starts.

    python -m benchmarks.first_result tinybn mlp.safetensors

It imports the framework that it is given, reads the parameters, or the graph, from the file and
prints the time when the logits of one image were there.
"""

from __future__ import annotations

import sys
import time


def compiled(path: str) -> None:
    """tinybn's graph, from a file of ``RuntimeGraph.save``."""
    import tinybn as tb

    graph = tb.graph.load(path, device="cpu")
    graph.forward(tb.randn(1, 1, 28, 28, device="cpu"))


def tinybn(path: str) -> None:
    """tinybn's model as it is."""
    import tinybn as tb
    from tinybn import nn

    model = nn.models.mlp().to("cpu").eval()
    model.load_state_dict(tb.load(path, device="cpu"))
    with tb.no_grad():
        model(tb.randn(1, 1, 28, 28, device="cpu"))


def torch(path: str) -> None:
    """The same model in PyTorch, from a file of ``torch.save``."""
    import torch
    from torch import nn

    def hidden(before: int, size: int) -> list[nn.Module]:
        return [nn.Linear(before, size), nn.BatchNorm1d(size), nn.ReLU()]

    torch.set_num_threads(2)
    model = nn.Sequential(
        nn.Flatten(), *hidden(784, 512), *hidden(512, 512), nn.Linear(512, 10)
    ).eval()
    model.load_state_dict(torch.load(path, weights_only=True))
    with torch.inference_mode():
        model(torch.randn(1, 1, 28, 28))


def onnx(path: str) -> None:
    """The same model in ONNX Runtime, from an ONNX file."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    session.run(None, {"x": np.random.default_rng().standard_normal((1, 1, 28, 28), "float32")})


if __name__ == "__main__":
    library, path = sys.argv[1:]
    {"compiled": compiled, "tinybn": tinybn, "torch": torch, "onnx": onnx}[library](path)
    print(time.time())
