"""How many tokens to draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from localspec.decoding.stats import Step


class Controller(Protocol):
    """Decides the draft length; learns from what each round cost and gave."""

    def plan(self, limit: int) -> int:
        """How many tokens the next round may draft, 0 to `limit`."""

    def observe(self, step: Step) -> None:
        """Told of every round after it was committed."""


@dataclass(frozen=True)
class FixedLength:
    """The same length every round."""

    num_draft_tokens: int

    def plan(self, limit: int) -> int:
        """The fixed length, or what the limits leave of it."""
        return min(self.num_draft_tokens, limit)

    def observe(self, step: Step) -> None:
        """Nothing to learn."""
