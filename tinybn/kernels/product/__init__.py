"""Matrix products on arrays, and a linear layer's gradients, on every engine.

``functions`` is what ``tensor/ops/matmul.py`` and ``graph`` call: it checks, makes the outputs and
runs. ``objects`` holds the kernel objects with their tiles, ``tiles`` the Triton kernels, and
``addition`` how one tile of a product is added up, also for ``conv``. The CPU's are in
``reference/matmul.py``.
"""
