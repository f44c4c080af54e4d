"""Data sets and the loader that feeds them, batch by batch, to a training loop."""

from .dataset import Dataset
from .digits import digits
from .idx import read_idx
from .loader import DataLoader
from .mnist import fashion_mnist, mnist

__all__ = ["DataLoader", "Dataset", "digits", "fashion_mnist", "mnist", "read_idx"]
