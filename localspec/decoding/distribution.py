"""A probability distribution over token ids that stores only the ids it can draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
"""A row of raw logits, shape (V,)."""
TokenArray = NDArray[np.int64]
ProbArray = NDArray[Any]  # float64 in use; Fractions (dtype object) in the exact tests


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probabilities of the ids in `tokens`; every other id has probability 0.

    tokens: shape (m,), ascending ids.
    probs:  shape (m,), summing to 1.
    """

    tokens: TokenArray
    probs: ProbArray

    @classmethod
    def point(cls, token: int) -> Distribution:
        """All mass on one id: a greedy choice, or a token drafted without a model."""
        return cls(np.array([token], dtype=np.int64), np.ones(1))

    @classmethod
    def normalised(cls, tokens: TokenArray, mass: ProbArray) -> Distribution:
        """From unnormalised mass of shape (m,), with a positive sum."""
        return cls(tokens, mass / mass.sum())

    def prob(self, token: int) -> Any:
        """Probability of one id."""
        index = int(np.searchsorted(self.tokens, token))
        if index == len(self.tokens) or self.tokens[index] != token:
            return self.probs[:1].sum() * 0  # a zero of the dtype in use
        return self.probs[index]

    def probs_of(self, tokens: TokenArray) -> ProbArray:
        """Probabilities of several ids, shape (n,) for `tokens` of shape (n,)."""
        index = np.minimum(np.searchsorted(self.tokens, tokens), len(self.tokens) - 1)
        return np.where(self.tokens[index] == tokens, self.probs[index], self.probs[index] * 0)

    def sample(self, uniform: float) -> int:
        """The id whose interval of the cumulative distribution holds `uniform`, in [0, 1)."""
        if len(self.tokens) == 1:
            return int(self.tokens[0])
        cumulative = np.cumsum(self.probs)
        index = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
        if index >= len(self.tokens):  # rounding at the very top of the interval
            index = int(np.flatnonzero(self.probs)[-1])
        return int(self.tokens[index])
