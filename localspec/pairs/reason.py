"""Reason: one fact about a pair, and what it does to drafting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["refuses", "costs acceptance", "harmless"]


@dataclass(frozen=True)
class Reason:
    """topic: what it is about, in a few words. severity: what it does to drafting.

    clause: the fact, without a capital or a full stop.
    """

    topic: str
    severity: Severity
    clause: str

    @property
    def sentence(self) -> str:
        """The fact as a sentence."""
        return f"{self.clause[:1].upper()}{self.clause[1:]}."
