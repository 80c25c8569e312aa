"""Width classes: passes of which widths compute the same bits on a machine, and with which numbers of threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
    _fill(context, length)
    classes: list[tuple[NDArray[np.float32], list[int]]] = []
    for width in sorted(widths):
        rows = _rows(context, width, length, max(width, TOKENS)) if classes else None
        for whole, members in classes:
            if rows is not None and _distance(whole, rows) == 0:
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

    The first cells are read once, with as many threads as the context has; what each number leaves in the next ones is
    read by its own passes. Else as `width_classes`. The context is left with the first number.
    """
    _fill(context, length)
    first: list[NDArray[np.float32]] = []
    alike = []
    for count in counts:
        context.set_threads(count)
        rows = [_rows(context, width, length, max(width, TOKENS)) for width in widths]
        first = first or rows
        if all(_distance(one, other) == 0 for one, other in zip(first, rows, strict=True)):
            alike.append(count)
    context.truncate(0, 0)
    context.set_threads(counts[0])
    return tuple(alike)


def same_in_company(
    alone: Context,
    shared: Context,
    count: int,
    widths: Sequence[int],
    length: int = 0,
    before_pass: Callable[[], object] = lambda: None,
) -> bool:
    """Whether sequences that `shared` computes in one pass have the bits that each has in `alone`.

    All sequences have different texts, the first one `length` tokens, and the first and the last are compared: in
    passes over `widths` tokens of each of so many neighbours as fit. Behind `length` there is room for twice all of
    these. Overwrites all sequences and leaves them empty; `alone` has one. before_pass: may change how many threads
    they have.
    """
    texts = [_Text(77 * index, length if not index else min(length, 5)) for index in range(count)]
    for sequence_id, text in enumerate(texts):
        _fill(shared, text.length, sequence_id, text.offset, before_pass)
    for width in widths:
        most = max(min(count, max(widths) // width), 1)
        for first in (0, count - most):
            beside = range(first, first + most)
            spans = [texts[index].span(shared, index, width) for index in beside]
            before_pass()
            for index, rows in zip(beside, shared.decode(spans), strict=True):
                texts[index].rows += rows
    for sequence_id in range(count):
        shared.truncate(sequence_id, 0)
    return all(_same_alone(alone, text, widths[0], before_pass) for text in (texts[0], texts[-1]))


@dataclass
class _Text:
    """What one of several sequences reads, and the rows that it found behind `length` tokens."""

    offset: int
    length: int
    rows: list[Logits] = field(default_factory=list)

    def span(self, context: Context, sequence_id: int, width: int) -> Span:
        """The pass that goes on with it."""
        start = self.length + len(self.rows)
        return Span(sequence_id, _tokens(context, start, width, self.offset), start, width)


def _same_alone(context: Context, text: _Text, width: int, before_pass: Callable[[], object]) -> bool:
    """Whether a context that reads the same text by itself, in passes of `width`, finds the same rows."""
    _fill(context, text.length, 0, text.offset, before_pass)
    alone = _Text(text.offset, text.length)
    while len(alone.rows) < len(text.rows):
        before_pass()
        (rows,) = context.decode([alone.span(context, 0, width)])
        alone.rows += rows
    context.truncate(0, 0)
    return all(np.array_equal(*pair) for pair in zip(alone.rows, text.rows, strict=False))


def _fill(
    context: Context,
    length: int,
    sequence_id: int = 0,
    offset: int = 0,
    before_pass: Callable[[], object] = lambda: None,
) -> None:
    """Put tokens into the first `length` cells, in passes as wide as can be, and nothing behind them."""
    context.truncate(sequence_id, 0)
    for start in range(0, length, context.n_batch):
        count = min(context.n_batch, length - start)
        before_pass()
        context.decode([Span(sequence_id, _tokens(context, start, count, offset), start, 0)])


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


def _tokens(context: Context, start: int, count: int, offset: int = 0) -> tuple[int, ...]:
    places = range(start + offset, start + offset + count)
    return tuple((7 + 31 * index) % context.n_vocab for index in places)
