"""How far one round may draft: asked by the drafters, token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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

    def watch(self, drafter: str, confidence: float, token: int) -> None:
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

    def watch(self, drafter: str, confidence: float, token: int) -> None:
        """Nothing to learn."""
