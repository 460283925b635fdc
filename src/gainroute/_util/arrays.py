"""Array aliases, so that signatures say what an array holds; tensors as arrays, and values as messages show them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ArrayLike", "BoolArray", "Float32Array", "FloatArray", "IntArray", "LabelArray", "from_tensors", "shown"]

ArrayLike = npt.ArrayLike
FloatArray = npt.NDArray[np.float64]  # for computation; posteriors may come in as float16 or float32
Float32Array = npt.NDArray[np.float32]  # what models return and messages carry
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
LabelArray = npt.NDArray[Any]


def from_tensors(values: Any) -> Any:
    """Return torch tensors, alone or in a list, as numpy arrays; anything else unchanged.

    Gradients are dropped, other devices copied from, and bfloat16, which numpy lacks, becomes float32.
    """
    if isinstance(values, (list, tuple)) and any(hasattr(value, "detach") for value in values):
        return [from_tensors(value) for value in values]
    if not hasattr(values, "detach"):
        return values
    tensor = values.detach().cpu()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()


def shown(value: Any) -> str:
    """Return a value's repr for a message: a number of numpy as a plain number, 0 and not np.int64(0)."""
    return repr(value.item() if isinstance(value, np.generic) else value)
