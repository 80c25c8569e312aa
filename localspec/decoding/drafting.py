"""Who proposes the tokens that the target then checks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

import numpy as np

from localspec.decoding.distribution import Distribution, Logits
from localspec.decoding.plan import FORCED, MODEL, Plan
from localspec.decoding.rules import Round
from localspec.decoding.sampler import Sampler
from localspec.decoding.session import Session
from localspec.decoding.verify import Draft
from localspec.errors import NoTokenLeft


class Drafter(Protocol):
    """Proposes what may follow a committed sequence."""

    def begin(self, sequence: Sequence[int]) -> None:
        """A new answer starts; `sequence` is its prompt."""

    def prefill(self, sequence: Sequence[int]) -> None:
        """Read the prompt ahead of the first proposal."""

    def propose(self, sequence: Sequence[int], plan: Plan, sampler: Sampler, round_: Round) -> Draft:
        """As many tokens after `sequence` as the plan allows; fewer, or none, where it has nothing to say."""

    def rollback(self, length: int) -> None:
        """The committed sequence keeps its first `length` ids: forget what was built on later ones."""


class NoDrafter:
    """Proposes nothing: plain decoding. Also the base of drafters that hold no cells."""

    def begin(self, sequence: Sequence[int]) -> None:
        """Nothing to prepare."""

    def prefill(self, sequence: Sequence[int]) -> None:
        """Nothing to read."""

    def propose(self, sequence: Sequence[int], plan: Plan, sampler: Sampler, round_: Round) -> Draft:
        """An empty draft."""
        return Draft()

    def rollback(self, length: int) -> None:
        """Nothing to forget: only committed ids were looked at."""


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

    def begin(self, sequence: Sequence[int]) -> None:
        """Keep the cells this prompt shares with the last one."""
        self.session.align(sequence)

    def prefill(self, sequence: Sequence[int]) -> None:
        """Read all but the last id, whose pass gives the first draft."""
        pending = sequence[len(self.session.tokens) : -1]
        if pending and self._can_read(pending):
            self.session.forward(pending, num_logits=0)

    def propose(self, sequence: Sequence[int], plan: Plan, sampler: Sampler, round_: Round) -> Draft:
        """One pass of the draft per token, as long as the plan says that it pays."""
        pending = sequence[len(self.session.tokens) :]
        history = list(sequence) if sampler.reads_history else []
        tokens: list[int] = []
        probs: list[Distribution] = []
        while self._can_read(pending) and plan.pays_for_pass(MODEL, len(pending)):
            (row,) = self.session.forward(pending)
            row = row[: self._shared]
            try:
                draft_probs = sampler(row, history)
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

    def rollback(self, length: int) -> None:
        """Forget the cells of tokens that were not committed."""
        self.session.rollback(length)

    def _can_read(self, pending: Sequence[int]) -> bool:
        """Whether the draft's context has room for these ids, and its vocabulary holds them."""
        context = self.session.context
        return len(self.session.tokens) + len(pending) <= context.n_ctx and max(pending) < context.n_vocab


class ForcedDrafter(NoDrafter):
    """Proposes what a grammar leaves no choice about; no pass of a model is needed for it.

    A point mass like any copied token: where a text can be cut into tokens in several ways, the target decides.
    """

    def propose(self, sequence: Sequence[int], plan: Plan, sampler: Sampler, round_: Round) -> Draft:
        """The span that must follow, or whose text must."""
        if sampler.constraint is None:
            return Draft()
        answer = sequence[sampler.num_prompt :]
        forced = sampler.constraint.forced(answer, plan.room)
        forced = forced or sampler.constraint.likely(answer, plan.room)
        taken = tuple(takewhile(lambda token: token not in sampler.eog and plan.take(FORCED, 1.0), forced))
        return Draft(taken)


class ChainDrafter:
    """Several drafters: each continues where the one before it ended."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = tuple(drafters)

    def begin(self, sequence: Sequence[int]) -> None:
        """Every one of them."""
        for drafter in self.drafters:
            drafter.begin(sequence)

    def prefill(self, sequence: Sequence[int]) -> None:
        """Every one of them."""
        for drafter in self.drafters:
            drafter.prefill(sequence)

    def propose(self, sequence: Sequence[int], plan: Plan, sampler: Sampler, round_: Round) -> Draft:
        """The free ones come first in `drafters`, so a model draws only where they have nothing more."""
        draft = Draft()
        for drafter in self.drafters:
            if plan.room > 0:
                so_far = [*sequence, *draft.tokens] if draft.tokens else sequence
                draft = draft + drafter.propose(so_far, plan, sampler, round_)
        return draft

    def rollback(self, length: int) -> None:
        """Every one of them."""
        for drafter in self.drafters:
            drafter.rollback(length)


def largest_probability(row: Logits) -> float:
    """The draft's own confidence: the largest probability of its raw distribution, row of shape (V,)."""
    return float(1.0 / np.exp(row - row.max()).sum())
