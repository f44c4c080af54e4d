"""Pooling of images on arrays, forward and backward, on every engine.

``functions`` is what ``tensor/ops/pool.py`` and ``graph`` call: it checks, makes the outputs and
runs. ``objects`` holds the Triton kernels and the objects that launch them. The CPU's are in
``reference/pool.py``.
"""
