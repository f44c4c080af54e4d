"""Speed measurements, which need a clone and a GPU; run each as ``python -m benchmarks.NAME``."""
