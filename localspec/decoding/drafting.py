"""Who proposes the tokens that the target then checks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from localspec.decoding.control import FORCED, NGRAM, PREDICTION, Plan
from localspec.decoding.sampler import Sampler
from localspec.decoding.verify import Draft, Round


class Drafter(Protocol):
    """Proposes what may follow a committed sequence."""

    def begin(self, sequence: Sequence[int]) -> None:
        """A new answer starts; `sequence` is its prompt."""

    def unread(self, sequence: Sequence[int]) -> int:
        """How many tokens a model would have to read before its first proposal; 0 where none can, or need."""

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

    def unread(self, sequence: Sequence[int]) -> int:
        """Nothing."""
        return 0

    def prefill(self, sequence: Sequence[int]) -> None:
        """Nothing to read."""

    def propose(self, sequence: Sequence[int], plan: Plan, sampler: Sampler, round_: Round) -> Draft:
        """An empty draft."""
        return Draft()

    def rollback(self, length: int) -> None:
        """Nothing to forget: only committed ids were looked at."""


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

    def unread(self, sequence: Sequence[int]) -> int:
        """By all of them together."""
        return sum(drafter.unread(sequence) for drafter in self.drafters)

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
