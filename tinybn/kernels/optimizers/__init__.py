"""Optimisers' steps on lists of arrays, on every engine.

``functions`` is what ``nn.optim`` calls: it checks and runs. ``objects`` holds the Triton kernels
and the objects that launch them. The CPU's are in ``reference/optimizers.py``. A new rule is a
function, a kernel and a reference in these three, and a name in ``engines``.
"""
