"""Array aliases, so that signatures say what an array holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ArrayLike", "BoolArray", "Float32Array", "FloatArray", "IntArray", "LabelArray"]

ArrayLike = npt.ArrayLike
FloatArray = npt.NDArray[np.float64]  # for computation; posteriors may come in as float16 or float32
Float32Array = npt.NDArray[np.float32]  # what models return and messages carry
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
LabelArray = npt.NDArray[Any]
