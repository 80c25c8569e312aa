"""A head without a library: it keeps of each cell what it knew of the target then, and says when that was wrong."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.decoding.head_drafter import HeadDrafter
from localspec.decoding.session import Session, Span

from .fakes import FakeContext, LogitModel


class FakeHead(FakeContext):
    """states: for each cell what the target had read before it, or None where it had not been there yet."""

    def __init__(
        self, target: FakeContext, model: LogitModel, n_vocab: int, depth: int | None = None, **sizes: int
    ) -> None:
        super().__init__(model, n_vocab, n_outputs=1, **sizes)
        self.target, self.depth = target, depth
        self.states: list[tuple[int, ...] | None] = []

    def known(self, sequence_id: int) -> int:
        return len(self.target.cells.get(sequence_id, []))

    def decode(self, spans: Sequence[Span]) -> list[list]:
        (span,) = spans
        assert span.num_logits <= 1 and not span.num_padding
        for index in range(len(span.tokens)):
            seen = tuple(self.target.cells.get(0, [])[: span.start + index])
            self.states.append(seen if len(seen) == span.start + index else None)
        assert self.depth is None or self.states.count(None) < self.depth, "deeper than it has layers"
        return super().decode(spans)

    def truncate(self, sequence_id: int, length: int) -> int:
        del self.states[length:]
        return super().truncate(sequence_id, length)

    def check(self) -> None:
        """Between rounds each cell is of a token that stands, read with the target's own state."""
        assert self.states == [tuple(self.cells.get(0, [])[:index]) for index in range(len(self.states))]


def fake_head(
    target: LogitModel, head: LogitModel, n_vocab: int, depth: int | None = None
) -> tuple[Session, HeadDrafter]:
    """The target's session, and who drafts for it."""
    context = FakeContext(target, n_vocab)
    model = FakeHead(context, head, n_vocab, depth)
    return Session(context), HeadDrafter(Session(model), model, n_vocab)
