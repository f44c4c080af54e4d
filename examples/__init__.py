"""Programs that teach: run them from a clone, ``python -m examples.<name>``."""
