"""Episodes in and out of the program: npz files and Minari datasets."""

from bpsearch.exchange.minari import load_minari, save_minari
from bpsearch.exchange.npz import Delivery, load_npz, save_npz

__all__ = ["Delivery", "load_minari", "load_npz", "save_minari", "save_npz"]
