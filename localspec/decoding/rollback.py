"""Rollback: how a context forgets tokens that it has read, and how far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["cut", "snapshots", "replay", "none"]


@dataclass(frozen=True)
class Rollback:
    """What a context can do about tokens that shall not stand.

    cut:       cells are forgotten from any place on (attention).
    snapshots: a running state is kept behind each of the last tokens of a pass: `depth` of them can be taken back.
    replay:    a running state is saved before tokens that may not stand, and put back; those behind it that do stand
               are read again, as a part of the next pass.
    none:      nothing but all of it can be forgotten.
    """

    kind: Kind = "cut"
    depth: int = 0

    @property
    def limit(self) -> int | None:
        """Drafted tokens that one pass can check, as far as taking them back is concerned; None: any number."""
        return {"snapshots": self.depth, "none": 0}.get(self.kind)


CUT = Rollback()
FADE = 0.2
"""Share of what copies cost that the latest round decides."""


@dataclass
class WayBack:
    """What it costs, beside passes, that drafted tokens may have to be taken back.

    seconds: of copies of a running state in a round that drafts; measured in answers, 0 before the first.
    """

    rollback: Rollback = CUT
    seconds: float = 0.0

    @property
    def reads_again(self) -> bool:
        """Whether tokens that stand before a refused one are read again, with the next pass."""
        return self.rollback.kind == "replay"

    @property
    def is_free(self) -> bool:
        """Whether it costs nothing: cells are cut, and nothing was copied."""
        return not self.seconds and not self.reads_again

    def observe(self, seconds: float) -> None:
        """A round drafted, and its copies took so long."""
        self.seconds = (1 - FADE) * self.seconds + FADE * seconds if self.seconds else seconds


def rollback_of(context: object) -> Rollback:
    """How a context takes tokens back, its `rollback`: one that says nothing of it can cut."""
    # Asked several times a round: isinstance of a protocol would compute every property of it each time.
    rollback: Rollback = getattr(context, "rollback", CUT)
    return rollback


def rollback_seconds(context: object) -> float:
    """Seconds that it spent so far on saving running states and putting them back, if it says so."""
    seconds: float = getattr(context, "rollback_seconds", 0.0)
    return seconds
