"""Who decides how many tokens to draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from localspec.decoding.plan import FixedPlan, Plan
from localspec.decoding.stats import Step


class Controller(Protocol):
    """Plans each round; learns from what the rounds cost and gave."""

    def begin(self) -> None:
        """A new answer starts."""

    def prefills_draft(self, num_prompt: int) -> bool:
        """Whether the draft model shall read a prompt of `num_prompt` tokens along with the target."""

    def plan(self, limit: int, length: int) -> Plan:
        """The next round: at most `limit` drafted tokens, behind `length` cells."""

    def width(self, width: int, limit: int, length: int) -> int:
        """The width, from `width` to `limit`, to which a pass is best padded."""

    def observe(self, step: Step) -> None:
        """Told of every round after it was committed."""


@dataclass(frozen=True)
class FixedLength:
    """The same length every round, whatever it costs."""

    num_draft_tokens: int

    def begin(self) -> None:
        """Nothing to forget."""

    def prefills_draft(self, num_prompt: int) -> bool:
        """Not ahead of need."""
        return False

    def plan(self, limit: int, length: int) -> Plan:
        """The fixed length, or what the limits leave of it."""
        return FixedPlan(min(self.num_draft_tokens, limit))

    def width(self, width: int, limit: int, length: int) -> int:
        """Never padded."""
        return width

    def observe(self, step: Step) -> None:
        """Nothing to learn."""
