"""Mixed precision under PyTorch's names."""

from __future__ import annotations

from ..tensor.autocast import autocast

__all__ = ["autocast"]
