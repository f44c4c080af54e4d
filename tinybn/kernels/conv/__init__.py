"""Convolution of images on arrays, forward and both gradients, on every engine.

``functions`` is what ``tensor/ops/conv.py`` and ``graph`` call: it checks, makes the outputs and
runs. ``objects`` holds the kernel objects with their tiles, ``gather`` the Triton kernel of forward
and of the input's gradient, ``weight`` that of the weight's. The CPU's are in
``reference/conv.py``.
"""
