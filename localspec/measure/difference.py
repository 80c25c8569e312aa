"""The first place at which two answers differ, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.classes import WidthClass
from localspec.decoding.sampling import Logits
from localspec.decoding.session import Session
from localspec.engine.engine import Engine
from localspec.engine.strict import LENGTH, measured_classes

SHORT = 32
"""Cells before the rows compared, for a short context; `LENGTH` is a long one."""
MARGIN = 2.0
"""Two logits may each be off by the distance measured."""

Scores = Callable[[Logits, int], NDArray[np.float64]]
"""From a row (V,) and the position of its token to scores (V,) in units of logits: that token has the largest."""


@dataclass(frozen=True)
class Answer:
    """ids: without the end of generation; `ended` says that one followed."""

    ids: tuple[int, ...]
    ended: bool

    def departs(self, other: Answer) -> int | None:
        """The index of the first token that differs, or None."""
        ours, theirs = ((*answer.ids, -1) if answer.ended else answer.ids for answer in (self, other))
        pairs = enumerate(zip_longest(ours, theirs, fillvalue=None))
        return next((index for index, (left, right) in pairs if left != right), None)


@dataclass(frozen=True)
class Difference:
    """index: token of the answer. expected, got: the texts there.

    gap:        between their scores in the target's own row behind the text they share.
    below_best: how far the lesser of the two lies below the best score of that row: 0 when both are the best.
    explained:  whether that is within the rounding.
    """

    index: int
    expected: str
    got: str
    gap: float
    below_best: float
    explained: bool

    def to_dict(self) -> dict[str, object]:
        """The difference, ready for JSON."""
        return {**asdict(self), "gap": round(self.gap, 4), "below_best": round(self.below_best, 4)}


class Rounding:
    """How far the kernels of different passes round apart here; measured when first asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @cached_property
    def classes(self) -> dict[int, list[WidthClass]]:
        """Width classes of the target behind SHORT and LENGTH cells; empty where cells cannot be rolled back."""
        target = self._engine.target
        if target.rollback.kind == "none":
            return {}
        return {
            length: measured_classes(target.weights, target.options, length) for length in (SHORT, LENGTH)
        }

    @property
    def tolerance(self) -> float:
        """How far apart two logits may be to change places by rounding; 0 in strict mode."""
        if self._engine.options.strict:
            return 0.0
        return MARGIN * max(
            (group.distance for groups in self.classes.values() for group in groups), default=0.0
        )

    def difference(
        self, prompt: Sequence[int], expected: Answer, got: Answer, scores: Scores
    ) -> Difference | None:
        """Where the two part, judged by the target's row there; None where they are equal.

        Overwrites the cells of the target.
        """
        index = expected.departs(got)
        if index is None:
            return None
        prefix = [*prompt, *expected.ids[:index]]
        values = scores(self._row(prefix), len(prefix))
        tokens = [self._token(answer, index, values) for answer in (expected, got)]
        at = values[tokens]
        below = float(values.max() - at.min())
        strict = self._engine.options.strict
        return Difference(
            index=index,
            expected=self._text(tokens[0]),
            got=self._text(tokens[1]),
            gap=float(abs(at[0] - at[1])),
            below_best=below,
            explained=not strict and below <= self.tolerance,
        )

    def _row(self, prefix: list[int]) -> Logits:
        """The row (V,) behind `prefix` as plain decoding computes it: the last id alone in its pass."""
        self._engine.forget()
        session = Session(self._engine.target, min_width=self._engine.session.min_width)
        session.align(prefix)
        if len(prefix) > 1:
            session.forward(prefix[:-1], num_logits=0)
        return session.forward(prefix[-1:])[0]

    def _token(self, answer: Answer, index: int, values: NDArray[np.float64]) -> int:
        """The answer's token there. It does not say which end of generation it ended with: the likeliest is taken."""
        if index < len(answer.ids):
            return answer.ids[index]
        return max(self._engine.vocab.eog_tokens, key=lambda token: float(values[token]))

    def _text(self, token: int) -> str:
        return self._engine.vocab.piece(token, special=True).decode("utf-8", "replace")


def logits(row: Logits, position: int) -> NDArray[np.float64]:
    """Scores of a greedy answer: the row itself, shape (V,)."""
    return row.astype(np.float64)
