"""Numbers from a caller: Python's own, numpy's, and any other type that says it is one; never a bool."""

from __future__ import annotations

import operator
from numbers import Real
from typing import SupportsIndex, cast

import numpy as np


def as_integer(value: object) -> int | None:
    """The whole number that `value` is, or None."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(cast(SupportsIndex, value))
    except TypeError:
        return None


def as_number(value: object) -> float | None:
    """The number that `value` is, or None."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def shown(value: object, width: int = 60) -> str:
    """How a value looks in one line of a message, whatever it is."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a whole number of more than 4300 digits has no repr
        return f"a {type(value).__name__}"
    return text if len(text) <= width else f"{text[: width - 3]}..."
