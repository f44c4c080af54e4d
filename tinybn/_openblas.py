"""The one setting of NumPy's OpenBLAS, which reads it from the environment when NumPy is loaded.

After a matrix product its threads keep their cores busy for 2²⁶ ticks, 26 ms at 2.6 GHz, waiting
for the next one. Meanwhile the CPU engine's own threads need those cores: the CNN's step on two
cores then takes a fifth more time. With 2²⁰ ticks they sleep between the MLP's products, whose step
takes a third more time until they are woken; 2²² ticks, 1.6 ms, serve both. A value of the user's
own stays, and where NumPy was loaded before, its default. Child processes inherit it.
"""

import os

os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "22")
