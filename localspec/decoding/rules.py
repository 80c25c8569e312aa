"""Where an answer's randomness comes from: how drafted tokens are drawn, and which accept rule judges them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.distribution import Distribution
from localspec.decoding.verify import Draft, Verdict, block, coupled, rejection


class Round(Protocol):
    """The randomness of one round."""

    def draw(self, probs: Distribution, position: int) -> int:
        """A drafted token for this position of the sequence."""

    def verify(self, target_probs: Sequence[Distribution], draft: Draft) -> Verdict:
        """Which drafted tokens stand, and what follows them."""


class Rule(Protocol):
    """An accept rule with an answer's seed."""

    def round(self, position: int) -> Round:
        """The round whose first token takes `position` of the sequence."""


@dataclass(frozen=True)
class RejectionRule:
    """Rejection sampling. A seed repeats a text with the same draft and the same draft lengths."""

    seed: int

    def round(self, position: int) -> Round:
        """Its numbers are its own."""
        return _RejectionRound(_uniforms(self.seed, position))


@dataclass(frozen=True)
class _RejectionRound:
    uniforms: np.random.Generator

    def draw(self, probs: Distribution, position: int) -> int:
        return probs.sample(self.uniforms.random())

    def verify(self, target_probs: Sequence[Distribution], draft: Draft) -> Verdict:
        return rejection(target_probs, draft, self.uniforms)


@dataclass(frozen=True)
class BlockRule:
    """Block verification. Seeds repeat as under rejection."""

    seed: int

    def round(self, position: int) -> Round:
        """Its numbers are its own."""
        return _BlockRound(_uniforms(self.seed, position))


@dataclass(frozen=True)
class _BlockRound(_RejectionRound):
    def verify(self, target_probs: Sequence[Distribution], draft: Draft) -> Verdict:
        return block(target_probs, draft, self.uniforms)


def _uniforms(seed: int, position: int) -> np.random.Generator:
    """Keyed by position instead of drawn from one stream: tokens that are cut away or rejected do not shift what
    comes later, and no number is ever used in two rounds."""
    key = np.array([seed, position], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


@dataclass(frozen=True)
class CoupledRule:
    """Coupled sampling: every token is a function of seed, prefix and target, whatever was drafted."""

    seed: int

    def round(self, position: int) -> Round:
        """The noise is keyed by each token's own position, so rounds leave no trace."""
        return _CoupledRound(position, Noise(self.seed))


@dataclass(frozen=True)
class _CoupledRound:
    position: int
    noise: Noise

    def draw(self, probs: Distribution, position: int) -> int:
        return perturbed(probs, self.noise, position)

    def verify(self, target_probs: Sequence[Distribution], draft: Draft) -> Verdict:
        return coupled(
            target_probs, draft, lambda probs, index: perturbed(probs, self.noise, self.position + index)
        )


def choose_rule(verify: str, seed: int | None) -> Rule:
    """For "auto": coupled where a seed asks for a text that repeats with any draft; else block, which keeps most."""
    chosen = secrets.randbits(63) if seed is None else seed
    if verify == "coupled" or (verify == "auto" and seed is not None):
        return CoupledRule(chosen)
    return RejectionRule(chosen) if verify == "rejection" else BlockRule(chosen)


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
