"""What is recorded: pictures of the tape, and steps replayed as CUDA graphs."""

from .capture import CapturedStep, capture
from .dot import to_dot

__all__ = ["CapturedStep", "capture", "to_dot"]
