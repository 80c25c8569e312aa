"""RunningStates: takes tokens back where a model's memory is a running state, which no removal of cells undoes.

A library keeps the position of such a state and nothing that would tell whether the state is the one of that position:
some removals that it grants change the position alone. So what can be taken back is known here, from the passes made.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

from localspec.decoding.session import Span


class Native(Protocol):
    """What a library does with the state of one sequence."""

    def copy_running(self, sequence_id: int) -> Any:
        """A copy of the running state, without the cells of attention; None where it could not be made."""

    def put_running(self, sequence_id: int, saved: Any) -> bool:
        """Put such a copy back; whether the library took it."""

    def remove_cells(self, sequence_id: int, start: int) -> bool:
        """Remove the cells from `start` on, -1 for all; whether the library did."""

    def ends_at(self, sequence_id: int, length: int) -> bool:
        """Whether the library too holds `length` tokens, 1 at least."""


@dataclass
class _Sequence:
    """length: tokens read. reach: the fewest that snapshots lead back to. saved: a copy behind the first `saved_at`.

    broken: a pass failed half-way, so that the state is none.
    """

    length: int = 0
    reach: int = 0
    saved: Any = None
    saved_at: int = 0
    broken: bool = False


class RunningStates:
    """Of all sequences of one context.

    depth: snapshots that the library keeps behind the last tokens of a pass; 0 for none.
    seconds: spent on copies so far.
    """

    def __init__(self, native: Native, n_sequences: int, depth: int) -> None:
        self._native, self._depth = native, depth
        self._sequences = [_Sequence() for _ in range(n_sequences)]
        self.seconds = 0.0

    def length(self, sequence_id: int) -> int:
        """Tokens that the sequence holds, or those that it can be brought back to after a failure."""
        sequence = self._sequences[sequence_id]
        return sequence.saved_at if sequence.broken else sequence.length

    def continues(self, span: Span) -> bool:
        """Whether the span begins where the sequence ends: the library would only note that in its log."""
        sequence = self._sequences[span.sequence_id]
        return not sequence.broken and span.start == sequence.length

    def before(self, span: Span) -> None:
        """Before a pass: save what will be needed to take its unsure tokens back."""
        sequence, end = self._sequences[span.sequence_id], span.start + len(span.tokens)
        sure = end if span.sure is None else span.sure
        if sure >= end or not sequence.saved_at < span.start <= sure:
            return
        if self._depth >= end - sure < len(span.tokens):
            return  # snapshots will do
        started = time.perf_counter()
        sequence.saved = self._native.copy_running(span.sequence_id)
        self.seconds += time.perf_counter() - started
        sequence.saved_at = 0 if sequence.saved is None else span.start

    def after(self, span: Span) -> None:
        """The pass succeeded."""
        sequence = self._sequences[span.sequence_id]
        sequence.length = span.start + len(span.tokens)
        # Snapshots lie behind tokens of the last pass alone; the state before its first one is gone.
        sequence.reach = sequence.length - min(self._depth, len(span.tokens) - 1)

    def failed(self, span: Span) -> None:
        """The pass failed, and may have changed the state half-way."""
        self._sequences[span.sequence_id].broken = True

    def truncate(self, sequence_id: int, length: int) -> int:
        """Forget the tokens from `length` on, and more where nothing else is possible; returns how many are left."""
        sequence = self._sequences[sequence_id]
        if not sequence.broken:
            if length >= sequence.length:
                return sequence.length
            if 0 < sequence.reach <= length:
                return length if self._step_back(sequence_id, length) else self.forget(sequence_id)
        if 0 < sequence.saved_at <= length and self._restore(sequence_id):
            return sequence.length
        return self.forget(sequence_id)

    def _step_back(self, sequence_id: int, length: int) -> bool:
        """By snapshots. The library takes only one such removal between two passes."""
        sequence = self._sequences[sequence_id]
        sequence.length = sequence.reach = length
        if sequence.saved_at > length:
            sequence.saved, sequence.saved_at = None, 0
        return self._cut(sequence_id, length)

    def _restore(self, sequence_id: int) -> bool:
        """Back to what was saved, which stays of use."""
        sequence = self._sequences[sequence_id]
        started = time.perf_counter()
        taken = self._native.put_running(sequence_id, sequence.saved)
        self.seconds += time.perf_counter() - started
        sequence.length = sequence.reach = sequence.saved_at
        sequence.broken = False
        return taken and self._cut(sequence_id, sequence.length)

    def _cut(self, sequence_id: int, length: int) -> bool:
        return self._native.remove_cells(sequence_id, length) and self._native.ends_at(sequence_id, length)

    def forget(self, sequence_id: int) -> int:
        """All of it; returns 0."""
        self._native.remove_cells(sequence_id, -1)
        self._sequences[sequence_id] = _Sequence()
        return 0

    def put(self, sequence_id: int, length: int) -> None:
        """The library was given a whole saved state of `length` tokens."""
        self._sequences[sequence_id] = _Sequence(length, length)
