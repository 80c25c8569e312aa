"""Interleave: several ways of decoding write the same text in turn, a segment each, each going on where it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from localspec.measure.interval import Segment

Name = TypeVar("Name")
TOKENS = 16
"""Of a segment, about: under a second on a small machine, so that whatever disturbs it lasts for several."""


class Lane(Protocol):
    """One way of decoding, in the middle of an answer."""

    @property
    def ended(self) -> bool:
        """Whether the answer is whole."""

    def begin(self) -> None:
        """Read the prompt and emit the first token."""

    def go_on(self, until: int) -> Segment | None:
        """Whole rounds until `until` tokens are there, those of the first round not counted, or the answer ends.

        None where so many were there already.
        """


def turns(lanes: Sequence[Name], shift: int) -> list[Name]:
    """The order of one round of turns: each begins with another, so that no lane profits from its place."""
    shift %= len(lanes)
    return [*lanes[shift:], *lanes[:shift]]


def interleave(
    lanes: Mapping[Name, Lane], shift: int = 0, tick: Callable[[int], None] = lambda tokens: None
) -> dict[Name, dict[int, Segment]]:
    """Let all lanes answer to their ends; their segments by number, which stands for the same place of the text.

    shift: which lane comes first at first. tick: told how many tokens there are, at first and behind each round
    of turns.
    """
    names = list(lanes)
    found: dict[Name, dict[int, Segment]] = {name: {} for name in names}
    tick(0)
    for name in turns(names, shift):
        lanes[name].begin()
    number = 0
    while not all(lane.ended for lane in lanes.values()):
        for name in turns(names, shift + number):
            segment = None if lanes[name].ended else lanes[name].go_on((number + 1) * TOKENS)
            if segment is not None:
                found[name][number] = segment
        number += 1
        tick(number * TOKENS)
    return found
