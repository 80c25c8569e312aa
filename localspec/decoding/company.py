"""Company: who else takes part in the passes of an answer, as its controller sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from localspec.decoding.stats import Batch


@dataclass(frozen=True)
class Company:
    """Answers whose passes are made together.

    seats: how many there are, this one included. rows: tokens of the others in a pass of the target.
    mates: answers in a pass of the draft model, this one included, on average.
    apart: a pass that is wider than theirs is one of its own, for which they wait.

    A pass serves all of them, so a second of it is worth what all of them commit in it: `seats` times what one does.
    What a drafted token adds to the pass is its own, and of a pass of the draft model its share.
    """

    seats: int = 1
    rows: int = 0
    mates: float = 1.0
    apart: bool = False


ALONE = Company()


@runtime_checkable
class Seated(Protocol):
    """A context whose passes are made together with others'."""

    @property
    def batch(self) -> Batch | None:
        """The latest pass, where others were in it too."""

    @property
    def waited(self) -> float:
        """Seconds so far in which it waited for what belongs to others."""

    @property
    def company(self) -> Company:
        """Those who take part now."""


def company_of(context: object) -> Company:
    """Who takes part in its passes: nobody else where it does not say."""
    return context.company if isinstance(context, Seated) else ALONE


def batch_of(context: object) -> Batch | None:
    """Its latest pass, where others were in it too."""
    return context.batch if isinstance(context, Seated) else None


def waited(context: object) -> float:
    """Seconds so far in which it waited for others."""
    return context.waited if isinstance(context, Seated) else 0.0
