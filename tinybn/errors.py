"""The errors that tinybn raises.

Each is a subclass of the built-in error that a Python user expects, so that
``except ValueError`` works, and of :class:`TinyBNError`, so that a program can
tell our errors from anyone else's. A message is one sentence: what was given
and what is wanted.
"""

from __future__ import annotations


class TinyBNError(Exception):
    """Base of every error that tinybn raises on purpose."""


class ShapeError(TinyBNError, ValueError):
    """Arrays whose shapes do not fit the operation or each other."""


class StatisticsError(ShapeError):
    """Batch statistics of one value a channel, which is no more than the value itself."""


class ArgumentError(TinyBNError, ValueError):
    """An argument outside the values that the function takes."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument of a type that the function does not take, such as text for a number.

    Python users expect a TypeError; who catches ArgumentError for bad arguments gets it too.
    """


class DTypeError(TinyBNError, TypeError):
    """A data type that the operation does not take."""


class IndexOutOfRange(TinyBNError, IndexError):
    """An index, axis or class label outside its range."""


class DeviceError(TinyBNError, RuntimeError):
    """Arrays on different devices, or a device that is not there."""


class MissingDependency(TinyBNError, ImportError):
    """An optional package that the call needs is not installed."""


class TapeError(TinyBNError, RuntimeError):
    """The tape cannot do what was asked: a freed graph, a value overwritten."""


class CaptureError(TinyBNError, RuntimeError):
    """A step that cannot be recorded once and replayed."""


class LaunchError(TinyBNError, RuntimeError):
    """A kernel could not be compiled, loaded or launched."""


class DataError(TinyBNError, ValueError):
    """A data file that is truncated, too long or not what it should be."""


class DownloadError(TinyBNError, RuntimeError):
    """A data set that is neither on disk nor to be fetched."""


class StateError(TinyBNError, RuntimeError):
    """A state dictionary whose keys or shapes do not fit the module."""


class OrderError(TinyBNError, RuntimeError):
    """A method called out of its turn, such as twice where once is meant."""


class GraphError(TinyBNError, RuntimeError):
    """A model that cannot be made a runtime graph."""
