"""Who proposes the tokens that the target then checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

import numpy as np

from localspec.decoding.control import FORCED, MODEL, NGRAM, PREDICTION, Plan
from localspec.decoding.sampler import Sampler
from localspec.decoding.sampling import Distribution, Logits
from localspec.decoding.session import Session
from localspec.decoding.verify import Draft, Round
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
        stop = self._why_not(pending, len(sequence))
        self.stop = stop and (self.stop or stop)
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
        """Every drafter is told of the prompt, whether it will be asked or not."""
        for drafter in self.drafters:
            drafter.begin(sequence)

    def prefill(self, sequence: Sequence[int]) -> None:
        """Those with a model read the prompt ahead; the others have nothing to read."""
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
        """Every drafter forgets, whoever drafted the tokens that do not stand."""
        for drafter in self.drafters:
            drafter.rollback(length)


def largest_probability(row: Logits) -> float:
    """The draft's own confidence: the largest probability of its raw distribution, row of shape (V,)."""
    return float(1.0 / np.exp(row - row.max()).sum())


LONGEST_MATCH = 32
"""Agreement beyond this says nothing more."""


class NgramIndex:
    """Where each n-gram of a text occurred last. Adding a token costs the same however long the text is."""

    def __init__(self, min_match: int, max_match: int) -> None:
        self._sizes = range(max_match, min_match - 1, -1)
        self._latest: dict[tuple[int, ...], int] = {}
        self._indexed = 1

    def extend(self, text: Sequence[int]) -> None:
        """Index what was added to `text`.

        An n-gram counts once something follows it, so that the text's own end never matches itself.
        """
        for end in range(self._indexed, len(text)):
            for size in self._sizes:
                if size <= end:
                    self._latest[tuple(text[end - size : end])] = end
        self._indexed = max(self._indexed, len(text))

    def find(self, tail: Sequence[int]) -> int | None:
        """The position behind the latest occurrence of the longest indexed n-gram that ends `tail`."""
        for size in self._sizes:
            end = self._latest.get(tuple(tail[-size:]))
            if end is not None:
                return end
        return None


def agreement(text: Sequence[int], end: int, tail: Sequence[int]) -> int:
    """How many tokens before `end` in `text` equal the last ones of `tail`, counted up to LONGEST_MATCH."""
    longest = min(end, len(tail), LONGEST_MATCH)
    return next((n for n in range(longest) if text[end - 1 - n] != tail[len(tail) - 1 - n]), longest)


class NgramDrafter(NoDrafter):
    """Prompt lookup: continues the way the text went on after the last occurrence of its latest tokens."""

    def __init__(self, min_match: int = 3, max_match: int = 5) -> None:
        self._range = min_match, max_match
        self._index = NgramIndex(*self._range)

    def begin(self, sequence: Sequence[int]) -> None:
        """Index the prompt."""
        self._index = NgramIndex(*self._range)
        self._index.extend(sequence)

    def propose(self, sequence: Sequence[int], plan: Plan, sampler: Sampler, round_: Round) -> Draft:
        """What followed the longest match; point masses, since nothing was drawn."""
        self._index.extend(sequence)
        end = self._index.find(sequence[-self._range[1] :])
        if end is None:
            return Draft()
        copied = sequence[end : end + plan.room]
        legal = sampler.count_legal(sequence, copied)
        match = agreement(sequence, end, sequence)
        count = 0
        while count < legal and plan.take(NGRAM, match + count):
            count += 1
        if not count:
            plan.foresee(NGRAM, match, sequence[end])
        return Draft(tuple(copied[:count]))


class PredictionDrafter(NoDrafter):
    """Follows a text that the caller expects, such as the file an editor wants changed.

    Where the answer departs, it is looked up again in the prediction by its latest tokens.
    """

    def __init__(self, prediction: Sequence[int], min_match: int = 3, max_match: int = 5) -> None:
        self._prediction = tuple(prediction)
        self._index = NgramIndex(min_match, max_match)
        self._index.extend(self._prediction)
        self._longest = max_match

    def begin(self, sequence: Sequence[int]) -> None:
        """The answer is expected to begin where the prediction begins."""
        self._next: int | None = 0
        self._match = LONGEST_MATCH // 2
        self._seen = len(sequence)

    def propose(self, sequence: Sequence[int], plan: Plan, sampler: Sampler, round_: Round) -> Draft:
        """The prediction's next tokens; point masses."""
        self._follow(sequence)
        if self._next is None:
            return Draft()
        copied = self._prediction[self._next : self._next + plan.room]
        legal = sampler.count_legal(sequence, copied)
        count = 0
        while count < legal and plan.take(PREDICTION, self._match + count):
            count += 1
        if not count and copied:
            plan.foresee(PREDICTION, self._match, copied[0])
        return Draft(copied[:count])

    def _follow(self, sequence: Sequence[int]) -> None:
        for position in range(self._seen, len(sequence)):
            token = sequence[position]
            if self._next is not None and self._prediction[self._next : self._next + 1] == (token,):
                self._next, self._match = self._next + 1, self._match + 1
            else:
                tail = sequence[max(0, position + 1 - LONGEST_MATCH) : position + 1]
                self._next = self._index.find(tail[-self._longest :])
                self._match = agreement(self._prediction, self._next, tail) if self._next is not None else 0
        self._seen = len(sequence)


def chain(
    model: Drafter | None, *, copies: bool = True, prediction: Sequence[int] = (), constrained: bool = False
) -> ChainDrafter:
    """Who drafts one answer, the free ones first.

    model: None without a draft model, which then leaves repeated text. copies: draft from repeated text also beside a
    model. prediction: ids the answer is expected to resemble. constrained: a grammar may leave no choice.
    """
    drafters: list[Drafter] = [ForcedDrafter()] if constrained else []
    drafters += [PredictionDrafter(prediction)] if prediction else []
    drafters += [NgramDrafter()] if copies or model is None else []
    drafters += [model] if model is not None else []
    return ChainDrafter(drafters)
