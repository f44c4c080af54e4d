"""Softmax cross-entropy of rows of logits, forward and backward, on every engine.

``functions`` is what ``tensor/ops/cross_entropy.py`` and ``graph`` call: it checks, makes the
outputs and runs. ``objects`` holds the Triton kernels and the objects that launch them. The CPU's
are in ``reference/cross_entropy.py``.
"""
