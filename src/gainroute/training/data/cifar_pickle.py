"""A restricted unpickler for the official python files of CIFAR. It is the only place where anything is unpickled.

It can build containers, strings, numbers and numpy arrays, and nothing else: a pickle that refers to any other class or
function is refused before it is imported or called, so no code from the file runs. `gainroute.training.data.cifar` also
verifies the checksum of a file before it is read here.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from gainroute.errors import DataError

__all__ = ["load_arrays"]

# How numpy rebuilds an array; taken from an array because its module moved between numpy 1 and 2.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, and only numpy arrays are allowed")
        return _ALLOWED[module, name]


def load_arrays(data: bytes, where: str) -> Any:
    """Unpickle containers, strings (those of Python 2 as bytes), numbers and numpy arrays; else DataError.

    `where` names the file in errors.
    """
    try:
        return _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
    # A damaged pickle can raise any exception.
    except Exception as error:
        raise DataError(f"{where} cannot be read as a CIFAR batch ({error}): fetch the official archive") from error
