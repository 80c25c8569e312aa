"""Turn: a question and its answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from localspec.text.continuation import Said


@dataclass(frozen=True)
class Turn:
    """A question and its answer; `attempt` counts how often the answer was regenerated.

    said: the ids of the prompt and of the answer.
    """

    question: str
    answer: str
    attempt: int
    said: Said = field(repr=False)
