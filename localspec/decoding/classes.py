"""Width classes: passes of which widths compute the same bits on a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.distribution import Logits
from localspec.decoding.session import Context, Span

TOKENS = 16
"""Rows compared for each width."""


@dataclass(frozen=True)
class WidthClass:
    """Widths whose rows have the same bits, and the largest difference of any logit to those of the narrowest width."""

    widths: tuple[int, ...]
    distance: float


def width_classes(context: Context, widths: Sequence[int], length: int = 0) -> list[WidthClass]:
    """Group `widths` by the bits of their rows behind `length` cells; the class of the least width comes first.

    The same tokens are read in passes of each width, and whatever a pass leaves in the cells is read by the next: equal
    rows mean that any mixture of such passes gives the same. Widths are at most n_outputs.
    Overwrites sequence 0 of the context and leaves it empty.
    """
    context.truncate(0, 0)
    size = min(context.n_batch, max(widths))
    for start in range(0, length, size):
        count = min(size, length - start)
        context.decode([Span(0, _tokens(context, start, count), start, 0)])
    rows = {width: _rows(context, width, length) for width in sorted(widths)}
    context.truncate(0, 0)
    first = rows[min(rows)]
    classes: list[tuple[int, list[int]]] = []
    for width in rows:
        for representative, members in classes:
            if _distance(rows[representative], rows[width]) == 0:
                members.append(width)
                break
        else:
            classes.append((width, [width]))
    return [WidthClass(tuple(members), _distance(first, rows[head])) for head, members in classes]


def _rows(context: Context, width: int, length: int) -> NDArray[np.float32]:
    """Rows of TOKENS tokens (or of `width`, if more) behind `length`, read in passes of exactly `width`: (n, V)."""
    context.truncate(0, length)
    rows: list[Logits] = []
    for start in range(length, length + max(TOKENS // width, 1) * width, width):
        (passed,) = context.decode([Span(0, _tokens(context, start, width), start, width)])
        rows += passed[: TOKENS - len(rows)]
    return np.stack(rows)


def _distance(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    count = min(len(left), len(right))
    return float(np.abs(left[:count] - right[:count]).max())


def _tokens(context: Context, start: int, count: int) -> tuple[int, ...]:
    return tuple((7 + 31 * index) % context.n_vocab for index in range(start, start + count))
