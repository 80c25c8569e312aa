"""Accept rules: which drafted tokens stand, what comes after them, and where their randomness comes from.

Every rule leaves the output distributed exactly as the target alone would have it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from localspec.decoding.noise import Noise, perturbed
from localspec.decoding.sampling import Distribution


class Uniforms(Protocol):
    """A source of independent uniform numbers in [0, 1)."""

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Draft:
    """What a drafter proposes.

    tokens: K ids.
    probs:  the K distributions they were drawn from; None stands for a token that was not drawn (a point mass),
            and in place of the tuple for K of them.
    """

    tokens: tuple[int, ...] = ()
    probs: tuple[Distribution | None, ...] | None = None

    def distribution(self, index: int) -> Distribution:
        """The distribution the token at `index` was drawn from."""
        probs = self.probs[index] if self.probs is not None else None
        return Distribution.point(self.tokens[index]) if probs is None else probs

    def __add__(self, other: Draft) -> Draft:
        """This draft continued by another."""
        if not (self.tokens and other.tokens):
            return self if self.tokens else other
        probs = [*(self.probs or [None] * len(self.tokens)), *(other.probs or [None] * len(other.tokens))]
        return Draft(self.tokens + other.tokens, tuple(probs))


@dataclass(frozen=True, slots=True)
class Verdict:
    """num_accepted drafted tokens stand; `next_token` follows them (recovered, or bonus if all stand)."""

    num_accepted: int
    next_token: int


def acceptance(target_probs: Distribution, draft_probs: Distribution, token: int) -> Any:
    """min(1, p(x) / q(x)) for a token x drawn from q: Leviathan et al., 2211.17192, algorithm 1."""
    return min(1, target_probs.prob(token) / draft_probs.prob(token))


def residual(target_probs: Distribution, draft_probs: Distribution) -> Distribution:
    """max(p - q, 0), normalised: what a recovered token is drawn from."""
    mass = _excess(target_probs, draft_probs, 1)
    if not mass.sum() > 0:
        # p = q up to rounding: a rejection then has probability 0 up to rounding too.
        return target_probs
    return Distribution.normalised(target_probs.tokens, mass)


def rejection(target_probs: Sequence[Distribution], draft: Draft, uniforms: Uniforms) -> Verdict:
    """Speculative rejection sampling (2211.17192, 2302.01318).

    target_probs: K + 1 distributions; row i follows the sequence and the first i drafted tokens. Rows after
                  the first rejection are not read.
    uniforms:     fresh numbers, not those the draft was drawn with.
    """
    for index, token in enumerate(draft.tokens):
        draft_probs = draft.distribution(index)
        if uniforms.random() >= acceptance(target_probs[index], draft_probs, token):
            recovered = residual(target_probs[index], draft_probs).sample(uniforms.random())
            return Verdict(index, recovered)
    bonus = target_probs[len(draft.tokens)].sample(uniforms.random())
    return Verdict(len(draft.tokens), bonus)


def block(target_probs: Sequence[Distribution], draft: Draft, uniforms: Uniforms) -> Verdict:
    """Block verification (Sun et al., 2403.10444): judges the draft as a whole, and keeps at least as much of it as
    token by token on average.

    Arguments as for `rejection`, with which it agrees for K = 1 and for tokens that were not drawn.
    """
    weights = block_weights(target_probs, draft)
    # The longest prefix whose own draw succeeds, not the first that fails: tried from the end.
    for count in range(len(weights) - 1, 0, -1):
        if uniforms.random() < block_acceptance(target_probs, draft, weights, count):
            return Verdict(count, _after_block(target_probs, draft, weights[count], count, uniforms))
    return Verdict(0, _after_block(target_probs, draft, weights[0], 0, uniforms))


def block_weights(target_probs: Sequence[Distribution], draft: Draft) -> list[Any]:
    """w_0 = 1 and w_i = min(w_(i-1) p_i(x_i) / q_i(x_i), 1), up to the last that is not 0."""
    weights: list[Any] = [1]
    for index, token in enumerate(draft.tokens):
        ratio = target_probs[index].prob(token) / draft.distribution(index).prob(token)
        weight = min(weights[-1] * ratio, 1)
        if not weight > 0:
            break  # nothing behind a token that the target rules out can stand: its rows are not read
        weights.append(weight)
    return weights


def block_acceptance(
    target_probs: Sequence[Distribution], draft: Draft, weights: Sequence[Any], count: int
) -> Any:
    """h_i = Z_i / (Z_i + 1 - w_i) with Z_i = sum of max(w_i p_(i+1) - q_(i+1), 0); h_K = w_K."""
    weight = weights[count]
    if count == len(draft.tokens):
        return weight
    excess = _excess(target_probs[count], draft.distribution(count), weight).sum()
    # 0 / 0 where w = 1 and p = q: with w = 1 all that stands so far stands anyway.
    return excess / (excess + 1 - weight) if weight < 1 else 1


def _after_block(
    target_probs: Sequence[Distribution], draft: Draft, weight: Any, count: int, uniforms: Uniforms
) -> int:
    """From p after a whole draft, else from max(w p - q, 0), normalised."""
    following = target_probs[count]
    if count == len(draft.tokens):
        return following.sample(uniforms.random())
    mass = _excess(following, draft.distribution(count), weight)
    if not mass.sum() > 0:  # as in `residual`
        return following.sample(uniforms.random())
    return Distribution.normalised(following.tokens, mass).sample(uniforms.random())


def _excess(target_probs: Distribution, draft_probs: Distribution, weight: Any) -> Any:
    """max(w p - q, 0) on the target's tokens."""
    zero = target_probs.probs * 0
    return np.maximum(weight * target_probs.probs - draft_probs.probs_of(target_probs.tokens), zero)


def coupled(
    target_probs: Sequence[Distribution], draft: Draft, pick: Callable[[Distribution, int], int]
) -> Verdict:
    """Drafter-invariant sampling (2408.07978): emit the target's own pick per row while the draft agrees with it.

    pick: draws from row i with noise that depends on seed and position only; the draft was drawn with the same
          noise, which is why it agrees often. What is emitted does not depend on the draft at all.
    """
    for index, token in enumerate(draft.tokens):
        emitted = pick(target_probs[index], index)
        if emitted != token:
            return Verdict(index, emitted)
    return Verdict(len(draft.tokens), pick(target_probs[len(draft.tokens)], len(draft.tokens)))


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
        """A round with a generator of its own, keyed by its position: no number is used in two rounds."""
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
        """A round with a generator of its own, keyed by its position: no number is used in two rounds."""
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


RULES: Mapping[str, Callable[[int], Rule]] = {
    "rejection": RejectionRule,
    "block": BlockRule,
    "coupled": CoupledRule,
}
"""By the names that `checks.VERIFY` lets a caller give."""


def choose_rule(verify: str, seed: int | None) -> Rule:
    """For "auto": coupled where a seed asks for a text that repeats with any draft; else block, which keeps most."""
    name = ("block" if seed is None else "coupled") if verify == "auto" else verify
    return RULES[name](secrets.randbits(63) if seed is None else seed)
