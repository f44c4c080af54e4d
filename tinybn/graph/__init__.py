"""What is recorded: pictures of the tape."""

from .dot import to_dot

__all__ = ["to_dot"]
