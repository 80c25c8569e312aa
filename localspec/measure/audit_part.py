"""What one part of an audit found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Tick = Callable[[str], None]
"""Told what comes next, once for every step of a part."""


@dataclass(frozen=True)
class Part:
    """verdict: a sentence. figures: what was measured, ready for JSON."""

    passed: bool
    verdict: str
    figures: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The part, ready for JSON."""
        return {"passed": self.passed, "verdict": self.verdict, **self.figures}
