"""What replays of a recorded graph find anew: inputs and numbers, through a ring on the host.

``ring`` is the host's side, which ``graph/capture.py`` fills before each replay; ``objects`` holds
the Triton kernels with which the graph begins, and the object that launches them.
"""
