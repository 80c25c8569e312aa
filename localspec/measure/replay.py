"""Replay: the real loop on the real rows of a model, as often as one likes, each row computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from localspec.decoding.sampler import Sampler
from localspec.decoding.sampling import Distribution, Logits
from localspec.decoding.session import Context, Session, Span


class RowBook:
    """The rows of one model by the exact ids before them. Whoever asks again gets the same bits.

    session: on the real context, whose cells are overwritten.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rows: dict[tuple[int, ...], Logits] = {}

    @property
    def context(self) -> Context:
        """The real context, which computes the rows."""
        return self._session.context

    def row(self, prefix: Sequence[int]) -> Logits:
        """The row behind `prefix`, shape (V,)."""
        return self.rows(prefix, 1)[0]

    def rows(self, prefix: Sequence[int], count: int) -> list[Logits]:
        """The `count` rows (V,) behind the last `count` ids of `prefix`; new ones are computed in one pass."""
        keys = [tuple(prefix[:end]) for end in range(len(prefix) - count + 1, len(prefix) + 1)]
        missing = next((index for index, key in enumerate(keys) if key not in self._rows), count)
        if missing < count:
            for key, row in zip(keys[missing:], self._compute(prefix, count - missing), strict=True):
                self._rows.setdefault(key, row)
        return [self._rows[key] for key in keys]

    def _compute(self, prefix: Sequence[int], count: int) -> list[Logits]:
        head = len(prefix) - count
        self._session.align(prefix)
        self._session.rollback(head)
        if pending := prefix[len(self._session.tokens) : head]:
            self._session.forward(pending, num_logits=0)
        return self._session.forward(prefix[len(self._session.tokens) :], num_logits=count, sure=head)


class ReplayContext:
    """A `decoding.session.Context` of one sequence that answers from a book instead of computing."""

    def __init__(self, book: RowBook) -> None:
        real = book.context
        self.n_ctx, self.n_vocab = real.n_ctx, real.n_vocab
        self.n_batch, self.n_outputs = real.n_batch, real.n_outputs
        self._book = book
        self._cells: list[int] = []

    def decode(self, spans: Sequence[Span]) -> list[list[Logits]]:
        """The rows that the real context gave for the same ids."""
        return [self._append(span) for span in spans]

    def _append(self, span: Span) -> list[Logits]:
        assert span.start == len(self._cells), "a pass continues where the cells end"
        self._cells.extend(span.tokens)
        known = self._cells[: len(self._cells) - span.num_padding]
        return self._book.rows(known, span.num_logits) if span.num_logits else []

    def truncate(self, sequence_id: int, length: int) -> int:
        """Drop the cells from `length` on; returns how many are left."""
        del self._cells[length:]
        return len(self._cells)

    def length(self, sequence_id: int) -> int:
        """How many cells are in use."""
        return len(self._cells)


@dataclass(frozen=True)
class ReplaySampler(Sampler):
    """A sampler asked for the same rows thousands of times: it works once for each row and history."""

    made: dict[tuple[int, int, tuple[int, ...]], tuple[Logits, Distribution]] = field(default_factory=dict)

    def __call__(self, row: Logits, history: Sequence[int]) -> Distribution:
        """The sampler's own result for this row and history, computed once."""
        memory: Any = row.__array_interface__["data"]
        key = (int(memory[0]), len(row), tuple(history))
        if key not in self.made:
            # Beside its row, which thus keeps its place in memory: no other can come to lie there.
            self.made[key] = (row, super().__call__(row, history))
        return self.made[key][1]
