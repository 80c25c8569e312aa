"""Noise that depends on seed, position and token alone: two models that share it draw the same where they agree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.sampling import Distribution


class Noise:
    """Gumbel noise of a seed, by position and token. The last noise of each position is kept while a round lasts: the
    target's row often has the tokens that the draft's had."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._kept: dict[int, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}

    def at(self, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Noise for each token, shape (m,)."""
        known = self._kept.get(position)
        if known is None or not np.array_equal(known[0], tokens):
            known = self._kept[position] = (tokens, gumbel(self._seed, position, tokens))
        return known[1]


def perturbed(probs: Distribution, noise: Noise, position: int) -> int:
    """argmax(log p + G), G Gumbel noise of (seed, position, token): an exact draw from p.

    Two distributions that share seed and position draw the same token where they agree (Daliri et al., 2408.07978).
    """
    if len(probs.tokens) == 1:
        return int(probs.tokens[0])
    with np.errstate(divide="ignore"):
        scores = np.log(probs.probs) + noise.at(position, probs.tokens)
    return int(probs.tokens[int(np.argmax(scores))])


def gumbel(seed: int, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Noise -log(-log U) for each token, shape (m,), from a hash of (seed, position, token): 53 bits of U."""
    key = _mix(_mix(np.array([seed], dtype=np.uint64)) ^ np.uint64(position))
    bits = _mix(_mix(tokens.astype(np.uint64) ^ key) + key)
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64: every input bit reaches every output bit."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
