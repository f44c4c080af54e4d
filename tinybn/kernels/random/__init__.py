"""Random numbers from a counter and a seed, and dropout, on every engine.

``functions`` is what ``tensor/creation.py`` and ``tensor/ops/dropout.py`` call: it checks, makes
the outputs and runs. ``objects`` holds the Triton kernels and the objects that launch them. The
CPU's are in ``reference/random.py``.
"""
