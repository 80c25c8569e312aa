"""HeadDrafter: the target's prediction layers, or an EAGLE-3 head, propose from what it computed just before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from localspec.decoding import session
from localspec.decoding.control import Plan
from localspec.decoding.model_drafter import ModelDrafter
from localspec.decoding.sampler import Sampler
from localspec.decoding.sampling import Distribution, Logits
from localspec.decoding.session import Session
from localspec.decoding.verify import Draft, Round


class HeadContext(session.Context, Protocol):
    """Cells of prediction layers, each made of a token and the target's hidden state at the position before it.

    The context finds these states itself. Where the target has not been yet, it takes its own for them.
    """

    @property
    def depth(self) -> int | None:
        """Tokens that it can guess in a row; None: any number."""

    def known(self, sequence_id: int) -> int:
        """Tokens at the start of a sequence that the target has read, so that their hidden states are known."""


class HeadDrafter(ModelDrafter):
    """The target's own prediction layers: a pass over a token and the hidden state before it gives the next one.

    It differs from a draft model in three things. It drafts behind committed tokens only, because of what another
    drafter proposed no hidden state is known. What it read of its own guesses is forgotten after each round, and read
    again with the target's states. And it goes no further than its layers do, where there are several.
    """

    def __init__(
        self, session: Session, head: HeadContext, vocab_size: int, eog_tokens: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(session, vocab_size, eog_tokens)
        self._head = head
        self._guesses_from: int | None = None

    def propose(self, sequence: Sequence[int], plan: Plan, sampler: Sampler, round_: Round) -> Draft:
        """One pass for each token, as long as the plan says that it pays."""
        if len(sequence) - 1 > self._head.known(self.session.sequence_id):
            return Draft()
        self._guesses_from = len(sequence)
        return super().propose(sequence, plan, sampler, round_)

    def rollback(self, length: int) -> None:
        """Forget the cells of its own guesses too, also of those that stand."""
        start, self._guesses_from = self._guesses_from, None
        super().rollback(length if start is None else min(length, start))

    def _distribution(self, row: Logits, history: Sequence[int], sampler: Sampler) -> Distribution:
        known = row > -np.inf  # an EAGLE-3 head may draft some of the target's tokens only
        if known.all() or not known.any():
            return super()._distribution(row, history, sampler)
        # Callbacks are given finite rows, whoever drafts.
        return sampler(np.where(known, row, row[known].min()), history, known)

    def _can_read(self, pending: Sequence[int]) -> bool:
        if self._guesses_from is not None and self._head.depth is not None:
            guessed = len(self.session.tokens) + len(pending) - self._guesses_from
            if guessed >= self._head.depth:
                return False
        return super()._can_read(pending)
