"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    """OK; a note (works, and could be better or should be known); a problem (something will fail)."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """topic: what was looked at. fact: one clause or sentence. remedy: what to do, "" where there is nothing.

    data: the facts behind it, ready for JSON.
    """

    topic: str
    status: Status
    fact: str
    remedy: str = ""
    data: dict[str, object] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """The finding, ready for JSON."""
        return {
            "topic": self.topic,
            "status": self.status.value,
            "fact": self.fact,
            "remedy": self.remedy,
            **({"data": self.data} if self.data else {}),
        }


def ok(topic: str, fact: str, **data: object) -> Finding:
    """A finding that something is in order. data: the facts behind it, ready for JSON."""
    return Finding(topic, Status.OK, fact, "", data)


def note(topic: str, fact: str, remedy: str = "", **data: object) -> Finding:
    """A finding that is worth knowing."""
    return Finding(topic, Status.NOTE, fact, remedy, data)


def problem(topic: str, fact: str, remedy: str, **data: object) -> Finding:
    """A finding that something will fail."""
    return Finding(topic, Status.PROBLEM, fact, remedy, data)
