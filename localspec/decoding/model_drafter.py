"""ModelDrafter: a small model that proposes what the target then checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from localspec.decoding.control import MODEL, Plan
from localspec.decoding.sampler import Sampler
from localspec.decoding.sampling import Distribution, Logits
from localspec.decoding.session import Session
from localspec.decoding.verify import Draft, Round
from localspec.errors import NoTokenLeft


@dataclass(frozen=True)
class Stop:
    """Why a draft model drafts no more, after how many tokens of the conversation."""

    reason: str
    tokens: int

    def __str__(self) -> str:
        return f"the draft model ended at token {self.tokens}: {self.reason}"


class ModelDrafter:
    """A small model that shares the target's ids: draws each token from its own distribution.

    session:     the draft's own; its tokens stay a strict prefix of the committed sequence between rounds.
    vocab_size:  ids the target knows; the draft's further ids are cut off before drawing.
    eog_tokens:  ends of generation; drafting past one would be work for nothing.
    """

    def __init__(self, session: Session, vocab_size: int, eog_tokens: frozenset[int] = frozenset()) -> None:
        self.session = session
        self._shared = min(vocab_size, session.context.n_vocab)
        self._eog = eog_tokens
        self.stop: Stop | None = None

    def begin(self, sequence: Sequence[int]) -> None:
        """Keep the cells this prompt shares with the last one."""
        self.session.align(sequence)
        self.stop = None

    def unread(self, sequence: Sequence[int]) -> int:
        """All but the last id, whose pass gives the first draft; 0 where they do not fit."""
        pending = sequence[len(self.session.tokens) : -1]
        return len(pending) if pending and self._can_read(pending) else 0

    def prefill(self, sequence: Sequence[int]) -> None:
        """Read all but the last id, whose pass gives the first draft."""
        if num_unread := self.unread(sequence):
            self.session.forward(sequence[-1 - num_unread : -1], num_logits=0)

    def propose(self, sequence: Sequence[int], plan: Plan, sampler: Sampler, round_: Round) -> Draft:
        """One pass of the draft per token, as long as the plan says that it pays."""
        pending = sequence[len(self.session.tokens) :]
        history = list(sequence) if sampler.reads_history else []
        tokens: list[int] = []
        probs: list[Distribution] = []
        stop = self._why_not(pending, len(sequence))
        self.stop = stop and (self.stop or stop)
        while self._can_read(pending) and plan.pays_for_pass(MODEL, len(pending)):
            (row,) = self.session.forward(pending, sure=len(sequence))
            row = row[: self._shared]
            try:
                draft_probs = self._distribution(row, history, sampler)
            except NoTokenLeft:  # the target may have ids that the draft lacks
                break
            # Asked before the draw: whether a token is proposed must not depend on which one it is.
            if not plan.take(MODEL, largest_probability(row)):
                break
            token = round_.draw(draft_probs, len(sequence) + len(tokens))
            tokens.append(token)
            probs.append(draft_probs)
            if token in self._eog:
                break
            pending = [token]
            history.append(token)
        return Draft(tuple(tokens), tuple(probs))

    def _distribution(self, row: Logits, history: Sequence[int], sampler: Sampler) -> Distribution:
        return sampler(row, history)

    def rollback(self, length: int) -> None:
        """Forget the cells of tokens that were not committed."""
        self.session.rollback(length)

    def _why_not(self, pending: Sequence[int], length: int) -> Stop | None:
        if self._can_read(pending):
            return None
        n_ctx = self.session.context.n_ctx
        if length > n_ctx:
            return Stop(f"its context holds {n_ctx} tokens", n_ctx)
        return Stop("it does not know a token of the text", length)

    def _can_read(self, pending: Sequence[int]) -> bool:
        """Whether the draft's context has room for these ids, and its vocabulary holds them."""
        context = self.session.context
        return len(self.session.tokens) + len(pending) <= context.n_ctx and max(pending) < context.n_vocab


def largest_probability(row: Logits) -> float:
    """The draft's own confidence: the largest probability of its raw distribution, row of shape (V,)."""
    return float(1.0 / np.exp(row - row.max()).sum())
