"""What all bodies share."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["Body", "Error", "Number"]

Number = float | Literal["inf", "-inf"] | None  # JSON has no infinities; null stands for NaN


class Body(BaseModel):
    """An object without other keys than these."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Error(Body):
    """Why a request was refused."""

    error: str
    code: str
