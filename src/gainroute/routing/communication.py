"""What a decision costs in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gainroute.errors import SettingError
from gainroute.routing.inputs import check_fraction

__all__ = ["communication_cost"]


def communication_cost(
    classes: int,
    dimensions: Sequence[int],
    escalation_rate: float = 1.0,
    posterior_dtype: Any = "float32",
    embedding_dtype: Any = "float32",
) -> float:
    """Payload bytes a sample, all parties together: Σᵢ (K + rate · dᵢ) values.

    Parameters
    ----------
    classes
        K: every party sends K values for every sample.
    dimensions
        dᵢ, the length of each party's embedding, sent for escalated samples only.
    escalation_rate
        The share of samples escalated.
    posterior_dtype, embedding_dtype
        Number formats on the wire, as numpy names them.

    Examples
    --------
    Four parties, ten classes, embeddings of 512 values:

    >>> communication_cost(10, [512] * 4, 0.2)
    1798.4
    >>> communication_cost(10, [512] * 4, 1.0)
    8352.0
    """
    rate = check_fraction(escalation_rate, "escalation_rate", "the share of samples escalated")
    if classes < 2 or not len(dimensions) or min(dimensions) < 1:
        raise SettingError(
            f"classes is {classes} and dimensions {list(dimensions)}; at least two classes, one party, and embeddings "
            "of one value or more are needed"
        )
    posterior = np.dtype(posterior_dtype).itemsize * classes * len(dimensions)
    embedding = np.dtype(embedding_dtype).itemsize * sum(dimensions)
    return float(posterior + rate * embedding)
