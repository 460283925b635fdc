"""Reading the official python form of CIFAR: pickles, through an unpickler that builds nothing but arrays."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from gainroute.errors import DataError

__all__ = ["load_arrays"]

# How numpy rebuilds an array, without naming its module: that moved between numpy 1 and 2.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, and only numpy arrays are admitted")
        return _ADMITTED[module, name]


def load_arrays(data: bytes, where: str) -> Any:
    """Unpickle plain containers, strings, numbers and numpy arrays; anything else is an error and is not run.

    Parameters
    ----------
    data
        The pickle. Strings of Python 2 come out as bytes.
    where
        How errors name it.
    """
    try:
        return _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
    # A damaged pickle raises whatever the damage makes it do; none of it is our fault to let through.
    except Exception as error:
        raise DataError(f"{where} cannot be read as a CIFAR batch ({error}): fetch the official archive") from error
