"""Company: who else takes part in the passes of an answer, as its controller sees it."""

from __future__ import annotations

from dataclasses import dataclass

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


def company_of(context: object) -> Company:
    """Who takes part in its passes now: nobody else where it does not say."""
    # Asked in every round: isinstance of a protocol would compute every property of it each time.
    company: Company = getattr(context, "company", ALONE)
    return company


def batch_of(context: object) -> Batch | None:
    """Its latest pass, where others were in it too and it says so."""
    batch: Batch | None = getattr(context, "shared_batch", None)
    return batch


def waited(context: object) -> float:
    """Seconds so far in which it waited for what belongs to others, if it says so."""
    seconds: float = getattr(context, "waited", 0.0)
    return seconds
