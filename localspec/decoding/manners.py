"""Manners in which a draft model of another vocabulary can draft, and which one is used."""

from __future__ import annotations

from localspec.decoding.estimates import Average

SHARED, RETOLD = "shared", "retold"
"""The manners."""
ENOUGH = 0.5
"""Share of the draft's tokens that the target has too, from which on drafting begins with the shared ones."""
TRIALS = 2
"""Drafts in each manner before one is preferred."""
TRY_OTHER = 16
"""Drafts after which the manner that seems worse is tried again."""


class Manners:
    """Which manner to draft in: the one that had more tokens stand for each pass of the draft, in this answer.

    share: of the draft's ids that the target has too; with none of them text is retold.
    """

    def __init__(self, share: float) -> None:
        names = (SHARED, RETOLD) if share >= ENOUGH else (RETOLD, SHARED)
        self._worth = {name: Average(prior=0.5, weight=2.0) for name in (names if share else (RETOLD,))}
        self.reset()

    def reset(self) -> None:
        """Nothing learned from one text speaks about the next."""
        for average in self._worth.values():
            average.reset()
        self._drafts = dict.fromkeys(self._worth, 0)
        self._since_other = 0
        self._used: tuple[str, int] | None = None

    def next(self) -> str:
        """The manner of the next draft."""
        if untried := [name for name, count in self._drafts.items() if count < TRIALS]:
            return untried[0]
        return self._ranked[0 if self._since_other < TRY_OTHER else -1]

    def used(self, manner: str, num_passes: int) -> None:
        """A draft was made in that manner."""
        self._since_other = self._since_other + 1 if manner == self._ranked[0] else 0
        self._drafts[manner] += 1
        self._used = manner, num_passes

    def learn(self, num_standing: int) -> None:
        """Told how many tokens of the last draft stand."""
        if self._used is not None:
            manner, num_passes = self._used
            self._worth[manner].observe(num_standing / num_passes)
            self._used = None

    @property
    def _ranked(self) -> list[str]:
        """The better one first."""
        return sorted(self._worth, key=lambda name: -self._worth[name].value)
