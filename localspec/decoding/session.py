"""Session: one sequence of a Context and the exact ids its cells hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import eq
from typing import Protocol, runtime_checkable

from localspec.decoding.rollback import Rollback, rollback_of
from localspec.decoding.sampling import Logits
from localspec.decoding.threads import ThreadControl
from localspec.errors import LocalspecError, StateError


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens for one forward pass: they take the cells from `start` on.

    The last `num_logits` want a row. Behind them may stand `num_padding` tokens that only make the pass wider, where
    a wider one is faster or computed by the kernels wanted; what they leave in the cells is rolled back.
    min_rows: so many rows are computed at least, where any is wanted: behind the last attention a pass is as wide as
    its rows are many, and there too the width chooses the kernels.
    sure: tokens behind so many of the sequence may be taken back before any others are read; None: all stay.
    """

    sequence_id: int
    tokens: tuple[int, ...]
    start: int
    num_logits: int
    num_padding: int = 0
    min_rows: int = 0
    sure: int | None = None

    @property
    def rows(self) -> int:
        """Rows that are computed for it."""
        return max(self.num_logits, min(self.min_rows, len(self.tokens)))


class Context(Protocol):
    """KV memory of one model, as the method sees it."""

    @property
    def n_ctx(self) -> int:
        """Cells in one sequence."""

    @property
    def n_batch(self) -> int:
        """Tokens in one pass, at most."""

    @property
    def n_outputs(self) -> int:
        """Logit rows of one pass, at most."""

    @property
    def n_vocab(self) -> int:
        """Width V of a logit row."""

    def decode(self, spans: Sequence[Span]) -> list[list[Logits]]:
        """One forward pass; for each span its `num_logits` rows of shape (V,)."""

    def truncate(self, sequence_id: int, length: int) -> int:
        """Forget the cells from `length` on; returns how many are left: fewer, or 0, where a running state could not
        be brought back to just there."""

    def length(self, sequence_id: int) -> int:
        """How many cells the sequence holds."""


@runtime_checkable
class Saving(Protocol):
    """A context whose cells can be kept as bytes."""

    def state_bytes(self, sequence_id: int) -> int:
        """Bytes that `save_state` would take, about."""

    def save_state(self, sequence_id: int) -> bytes:
        """The cells of a sequence."""

    def load_state(self, data: bytes, sequence_id: int) -> int:
        """Put saved cells in the place of the sequence's own; returns how many tokens they are."""


@runtime_checkable
class Sharing(Protocol):
    """A context in which a sequence can hold the cells of another one."""

    def copy_cells(self, source: int, destination: int, count: int) -> int:
        """Let an empty sequence hold the first `count` cells of another; returns how many it then holds."""


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    return sum(1 for _ in takewhile(bool, map(eq, left, right)))


class Session:
    """Keeps `tokens` equal to what the cells of one sequence hold.

    Between rounds `tokens` is a strict prefix of the committed sequence; whatever a cancelled or failed round
    left behind is put right by the next `align`.

    min_width: narrower passes are padded to this, where they would be computed by other kernels.
    threads: decides how many each pass has; None: as many as the context was opened with.
    """

    def __init__(
        self,
        context: Context,
        sequence_id: int = 0,
        min_width: int = 1,
        threads: ThreadControl | None = None,
    ) -> None:
        self.context = context
        self.sequence_id = sequence_id
        self.min_width = min_width
        self.threads = threads
        self.tokens: list[int] = []

    @property
    def can_go_back(self) -> Rollback:
        """How the context takes tokens back."""
        return rollback_of(self.context)

    def align(self, sequence: Sequence[int]) -> int:
        """Keep the cells that hold a strict prefix of `sequence`; returns how many."""
        shared = min(common_prefix(self.tokens, sequence), len(sequence) - 1)
        shared = min(shared, self.context.length(self.sequence_id))
        # Truncate even when nothing seems to be beyond: a failed pass may have left cells not in `tokens`.
        kept = self.context.truncate(self.sequence_id, max(shared, 0))
        del self.tokens[kept:]
        return kept

    def rollback(self, length: int) -> None:
        """Forget every cell from `length` on."""
        if length < len(self.tokens):
            kept = self.context.truncate(self.sequence_id, length)
            del self.tokens[kept:]

    def borrow(self, other: Session, count: int) -> None:
        """Hold the first `count` tokens of another sequence of the same context, without reading them.

        Nothing where the context cannot share cells.
        """
        if not isinstance(self.context, Sharing):
            return
        self.context.truncate(self.sequence_id, 0)
        held = self.context.copy_cells(other.sequence_id, self.sequence_id, count)
        self.tokens = other.tokens[:held]

    def save(self) -> tuple[tuple[int, ...], bytes]:
        """The tokens and their cells, for `restore`. Raises `StateError` where the context cannot."""
        context = self._saving()
        # As in `align`: a failed pass may have left cells that are not in `tokens`.
        del self.tokens[self.context.truncate(self.sequence_id, len(self.tokens)) :]
        return tuple(self.tokens), context.save_state(self.sequence_id)

    def restore(self, tokens: Sequence[int], data: bytes) -> None:
        """Take back what `save` gave, in the place of what the cells hold. Raises `StateError`.

        `tokens` of the session stay true also then: those of before, or none.
        """
        context = self._saving()
        try:
            length = context.load_state(data, self.sequence_id)
        except LocalspecError:
            del self.tokens[self.context.length(self.sequence_id) :]
            raise
        if length != len(tokens):
            del self.tokens[self.context.truncate(self.sequence_id, 0) :]
            raise StateError(
                f"The saved state has {length} tokens, and {len(tokens)} were named.",
                "Read the prompt again.",
            )
        self.tokens = list(tokens)

    def state_bytes(self) -> int:
        """Bytes that `save` would take, about; 0 where the context cannot be saved."""
        return self.context.state_bytes(self.sequence_id) if isinstance(self.context, Saving) else 0

    def _saving(self) -> Saving:
        if not isinstance(self.context, Saving):
            raise StateError("The cells of this context cannot be saved.", "Read the prompt again.")
        return self.context

    def span(self, tokens: Sequence[int], num_logits: int, width: int = 0, sure: int | None = None) -> Span:
        """The pass that would append `tokens`, padded to `width`. sure: see `Span`."""
        num_padding = max(max(width, self.min_width) - len(tokens), 0)
        padded = (*tokens, *(tokens[-1],) * num_padding)
        min_rows = self.min_width if num_logits else 0
        return Span(self.sequence_id, padded, len(self.tokens), num_logits, num_padding, min_rows, sure)

    def extend(self, span: Span) -> None:
        """Record that a pass over `span` succeeded. What only made it wider is forgotten."""
        self.tokens.extend(span.tokens)
        if span.num_padding:
            self.rollback(len(self.tokens) - span.num_padding)

    def forward(self, tokens: Sequence[int], num_logits: int = 1, sure: int | None = None) -> list[Logits]:
        """Append `tokens` in passes of at most n_batch; the last `num_logits` rows, each (V,). sure: see `Span`."""
        rows: list[Logits] = []
        size = self.context.n_batch
        for start in range(0, len(tokens), size):
            chunk = tokens[start : start + size]
            last = start + size >= len(tokens)
            span = self.span(chunk, num_logits if last else 0, sure=sure)
            rows = self.decode(span)
            self.extend(span)
        return rows

    def decode(self, span: Span) -> list[Logits]:
        """One pass over `span` alone, which the caller then records; its rows, each (V,)."""
        if self.threads is not None:
            self.threads.decide()
        (rows,) = self.context.decode([span])
        return rows
