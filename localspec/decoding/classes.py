"""Width classes: passes of which widths compute the same bits on a machine, and with which numbers of threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.sampling import Logits
from localspec.decoding.session import Context, Span
from localspec.decoding.threads import Threaded

TOKENS = 16
"""Rows compared for each width, at least: every row of a wider pass is."""


@dataclass(frozen=True)
class WidthClass:
    """Widths whose rows have the same bits, and the largest difference of any logit to those of the narrowest width."""

    widths: tuple[int, ...]
    distance: float


def width_classes(context: Context, widths: Sequence[int], length: int = 0) -> list[WidthClass]:
    """Group `widths` by the bits of their rows behind `length` cells; the class of the least width comes first.

    The same tokens are read in passes of each width, and whatever a pass leaves in the cells is read by the next: equal
    rows mean that any mixture of such passes gives the same. Widths are at most n_outputs, and behind `length` there is
    room for twice the widest (or TOKENS, if more). Overwrites sequence 0 of the context and leaves it empty.
    """
    widest = max(widths)
    _fill(context, length, widest)
    classes: list[tuple[NDArray[np.float32], list[int]]] = []
    for width in sorted(widths):
        rows = _rows(context, width, length, max(width, TOKENS))
        for whole, members in classes:
            if _distance(whole, rows) == 0:
                members.append(width)
                break
        else:
            # The widest pass will be compared with these, to its last row.
            classes.append((_rows(context, width, length, max(widest, TOKENS)), [width]))
    context.truncate(0, 0)
    first = classes[0][0]
    return [WidthClass(tuple(members), _distance(first, rows)) for rows, members in classes]


class ThreadedContext(Context, Threaded, Protocol):
    """A context whose number of threads can be changed between passes."""


def threads_alike(
    context: ThreadedContext, counts: Sequence[int], widths: Sequence[int], length: int = 0
) -> tuple[int, ...]:
    """Those of `counts`, numbers of threads, with which passes of all `widths` have the bits of the first one's.

    What is in the cells was read by as many threads too. Else as `width_classes`. The context is left with the first.
    """
    first: list[NDArray[np.float32]] = []
    alike = []
    for count in counts:
        context.set_threads(count)
        _fill(context, length, max(widths))
        rows = [_rows(context, width, length, max(width, TOKENS)) for width in widths]
        first = first or rows
        if all(_distance(one, other) == 0 for one, other in zip(first, rows, strict=True)):
            alike.append(count)
    context.truncate(0, 0)
    context.set_threads(counts[0])
    return tuple(alike)


def _fill(context: Context, length: int, widest: int) -> None:
    """Put tokens into the first `length` cells, and nothing behind them."""
    context.truncate(0, 0)
    size = min(context.n_batch, widest)
    for start in range(0, length, size):
        count = min(size, length - start)
        context.decode([Span(0, _tokens(context, start, count), start, 0)])


def _rows(context: Context, width: int, length: int, count: int) -> NDArray[np.float32]:
    """The `count` rows behind `length`, read in passes of exactly `width`: (count, V)."""
    context.truncate(0, length)
    rows: list[Logits] = []
    for start in range(length, length + count, width):
        (passed,) = context.decode([Span(0, _tokens(context, start, width), start, width, sure=length)])
        rows += passed[: count - len(rows)]
    return np.stack(rows)


def _distance(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    count = min(len(left), len(right))
    return float(np.abs(left[:count] - right[:count]).max())


def _tokens(context: Context, start: int, count: int) -> tuple[int, ...]:
    return tuple((7 + 31 * index) % context.n_vocab for index in range(start, start + count))
