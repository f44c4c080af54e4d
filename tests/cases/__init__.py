"""Small inputs behind public reports against other frameworks, as tests of this one.

A case's id, such as ``BN-01``, stands for one kind of fault: an input that once broke another
framework, a kernel library or a compiler, with the value that is right. The letters are its
family (BN BatchNorm, SD state, AG autograd, PL pooling, CV convolution, CE losses, OP optimisers,
IN initialisation, DL interchange, TR and RL Triton, IX indexing, DA data), and the reports are
named beside each row. The right values are worked out here in float64 NumPy (``mathematics.py``);
golden numbers, where a row has them, hold that to what was worked out elsewhere.
"""
