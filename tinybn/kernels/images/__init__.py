"""Batches of a data set of images, picked, moved and normalised, on every engine.

``functions`` is what ``data`` calls: it checks, makes the outputs and runs. ``objects`` holds the
Triton kernel and the object that launches it. The CPU's is in ``reference/images.py``.
"""
