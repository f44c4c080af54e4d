"""BatchNorm on arrays, forward and backward, on every engine.

``functions`` (forward) and ``gradients`` (backward) are what callers see: they check, make the
outputs and run. ``objects`` holds the kernel objects, ``plan`` chooses their tiles, programs and
launches, and ``forward``, ``backward`` and ``normalize`` are the Triton kernels, of the device
functions in ``tiles`` and ``exchange``. ``tensor/ops/batch_norm.py`` and ``graph`` call them. A new
variant is a branch of a kernel, with the case for it in ``plan``.
"""
