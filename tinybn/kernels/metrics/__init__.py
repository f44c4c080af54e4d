"""Sums of losses and right answers on the device, on every engine.

``functions`` is what ``nn.metrics`` calls: it checks and runs. ``objects`` holds the Triton kernel
and the object that launches it. The CPU's is in ``reference/metrics.py``.
"""
