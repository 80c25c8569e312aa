"""Who decides how many tokens to draft, and the plan of a round that drafters ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from localspec.decoding.company import Company
from localspec.decoding.stats import Step

MODEL, NGRAM, PREDICTION, FORCED = "model", "ngram", "prediction", "forced"
"""Names by which drafters ask."""


class Plan(Protocol):
    """One round's answer to "may I draft on?".

    It looks at what is known *before* a token is drawn and never at the token itself: stopping is then part of
    the past, and the output distribution stays exact. A token once drawn is kept.
    """

    @property
    def room(self) -> int:
        """Tokens that may still be drafted in this round, whatever they cost."""

    def pays_for_pass(self, drafter: str, num_pending: int) -> bool:
        """Whether one more pass of a draft model over `num_pending` tokens is worth its time."""

    def take(self, drafter: str, confidence: float) -> bool:
        """Whether the next token, foreseen with this confidence, shall be drafted; if so it is counted."""

    def foresee(self, drafter: str, confidence: float, token: int) -> None:
        """Told which token a free drafter foresaw where it was not taken: what comes shows whether it was right."""


@dataclass
class FixedPlan:
    """Draft a number of tokens, whatever they cost."""

    room: int

    def pays_for_pass(self, drafter: str, num_pending: int) -> bool:
        """As long as there is room."""
        return self.room > 0

    def take(self, drafter: str, confidence: float) -> bool:
        """As long as there is room."""
        if self.room < 1:
            return False
        self.room -= 1
        return True

    def foresee(self, drafter: str, confidence: float, token: int) -> None:
        """Nothing to learn."""


class Controller(Protocol):
    """Plans each round; learns from what the rounds cost and gave."""

    def begin(self) -> None:
        """A new answer starts."""

    def prefills_draft(self, num_unread: int, num_left: int | None) -> bool:
        """Whether the draft model shall read `num_unread` tokens of the prompt, for at most `num_left` to come."""

    def plan(self, limit: int, length: int, num_pending: int = 1) -> Plan:
        """The next round: at most `limit` drafted tokens, behind `length` cells and `num_pending` tokens that the pass
        reads in any case.
        """

    def width(self, width: int, limit: int, length: int) -> int:
        """The width, from `width` to `limit`, to which a pass is best padded."""

    def meet(self, company: Company) -> None:
        """Told before each round who else takes part in its passes."""

    def observe(self, step: Step) -> None:
        """Told of every round after it was committed."""


@dataclass(frozen=True)
class FixedLength:
    """The same length every round, whatever it costs."""

    num_draft_tokens: int

    def begin(self) -> None:
        """Nothing to forget."""

    def prefills_draft(self, num_unread: int, num_left: int | None) -> bool:
        """Not ahead of need."""
        return False

    def plan(self, limit: int, length: int, num_pending: int = 1) -> Plan:
        """The fixed length, or what the limits leave of it."""
        return FixedPlan(min(self.num_draft_tokens, limit))

    def width(self, width: int, limit: int, length: int) -> int:
        """Never padded."""
        return width

    def meet(self, company: Company) -> None:
        """Nothing depends on it."""

    def observe(self, step: Step) -> None:
        """Nothing to learn."""
