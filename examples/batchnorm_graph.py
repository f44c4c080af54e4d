"""A BatchNorm layer taken apart: two nodes of a runtime graph, run, timed, drawn and checked.

    python -m examples.batchnorm_graph

In training BatchNorm is two things: the statistics of each channel, and normalising by them. A
runtime graph shows both as nodes, with what each launches. The gradient of x runs through the
statistics too, since they depend on x; the node that normalises takes that into account.
"""

from __future__ import annotations

import numpy as np

import tinybn as tb
from tinybn import graph, nn

N, C, SIZE = 32, 16, 14


def build() -> graph.RuntimeGraph:
    """x → statistics [2·C] → normalise (which reads x too) → y."""
    made = graph.RuntimeGraph("x", train=True)
    made.add(graph.BatchNormStatsRuntimeOp(C, eps=1e-5, momentum=0.1), "x", name="statistics")
    made.add(graph.BatchNormNormalizeRuntimeOp(C), "x", "statistics", name="normalize")
    return made


def load(made: graph.RuntimeGraph, layer: nn.BatchNorm2d) -> None:
    """Give the graph the layer's parameters, by node and slot."""
    state = layer.state_dict()
    made.load_state_dict({
        "statistics.running_mean": state["running_mean"],
        "statistics.running_var": state["running_var"],
        "normalize.weight": state["weight"],
        "normalize.bias": state["bias"],
    })  # fmt: skip


def check(what: str, ours: tb.Tensor, theirs: tb.Tensor, terms: int) -> None:
    """Raise where the two differ by more than sums of ``terms`` float32 numbers may."""
    a, b = ours.detach().numpy().astype(np.float64), theirs.detach().numpy().astype(np.float64)
    error, bound = abs(a - b).max() / abs(b).max(), np.finfo(np.float32).eps * terms**0.5
    print(f"{what:14} differs by {error:.1e} of the largest, at most {bound:.1e} allowed")
    assert error <= bound


def main() -> None:
    tb.manual_seed(0)
    layer = nn.BatchNorm2d(C)
    with tb.no_grad():
        layer.weight.copy_(tb.randn(C))
        layer.bias.copy_(tb.randn(C))
    made = build()
    load(made, layer)

    x = tb.randn(N, C, SIZE, SIZE) * 3 + 100
    dy = tb.randn(N, C, SIZE, SIZE)
    for_graph, for_tape = x.detach().requires_grad_(), x.detach().requires_grad_()

    y = made.forward(for_graph)
    made.backward(dy)
    expected = layer(for_tape)
    expected.backward(dy)

    print(made)
    print()
    print(made.profile(x))
    print()
    print(made.to_dot())
    print()
    values = N * SIZE * SIZE
    weight, bias = made.parameters()
    check("y", y, expected, values)
    check("dx", for_graph.grad, for_tape.grad, values)
    check("dweight", weight.grad, layer.weight.grad, values)
    check("dbias", bias.grad, layer.bias.grad, values)
    state = made.state_dict()
    check("running_mean", state["statistics.running_mean"], layer.running_mean, values)
    check("running_var", state["statistics.running_var"], layer.running_var, values)


if __name__ == "__main__":
    main()
