"""The one setting of NumPy's OpenBLAS, which reads it from the environment when NumPy is loaded.

After a matrix product its threads keep their cores busy for 2²⁶ ticks, 26 ms at 2.6 GHz, waiting
for the next one. Meanwhile the CPU engine's own threads need those cores: without that wait the
CNN's step on two cores takes a fifth less time. 2²⁰ ticks, 0.4 ms, still last from one product to
the next where nothing but products is done. A value of the user's own stays.
"""

import os

os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
