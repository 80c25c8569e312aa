"""Kept: how much of one drafted path each accept rule keeps, from the rows alone and not from trials.

Rows of floats or of Fractions. x_i is the i-th drafted token, drawn from q_i; p_i is the target's row there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from localspec.decoding.sampling import Distribution, TokenArray
from localspec.decoding.verify import Draft, acceptance, block_acceptance, block_weights


@dataclass(frozen=True)
class Kept:
    """K drafted tokens. Every entry is an expectation over what is not yet drawn when the i-th token is.

    overlap:    K numbers; the chance that the i-th token stands by itself: rejection.
    agreement:  K numbers; the same for coupled draws.
    rejection, block, coupled: K numbers; the chance that the first i tokens stand together, with the first i - 1 as
                drafted and the i-th still open. Their sum is the expected length of what is kept.
    block_drawn: the expected length that `block` keeps of the path as it was drawn, its own draws still open.
    """

    overlap: tuple[Any, ...]
    agreement: tuple[Any, ...]
    rejection: tuple[Any, ...]
    block: tuple[Any, ...]
    coupled: tuple[Any, ...]
    block_drawn: Any


def kept(target_probs: Sequence[Distribution], draft: Draft) -> Kept:
    """For a draft of K tokens and the target's K + 1 distributions, as an accept rule gets them.

    Of block verification P(tau >= i | x_1..x_i) = w_i (Sun et al., 2403.10444), hence sum(min(w_(i-1) p_i, q_i)) before
    x_i is drawn. On every path w_i is at least the product of the min(1, p/q), so block never keeps less.
    """
    weights = block_weights(target_probs, draft)
    overlaps, agreements = [], []
    rejection, block, coupled = [], [], []
    standing: Any = 1
    agreeing: Any = 1
    for index, token in enumerate(draft.tokens):
        p, q = target_probs[index], draft.distribution(index)
        overlaps.append(overlap(p, q))
        agreements.append(agreement(p, q))
        rejection.append(standing * overlaps[-1])
        block.append(overlap(p, q, weights[index] if index < len(weights) else 0))
        coupled.append(agreeing * agreements[-1])
        standing *= acceptance(p, q, token)
        agreeing *= agreement_on(p, q, token)
    return Kept(
        overlap=tuple(overlaps),
        agreement=tuple(agreements),
        rejection=tuple(rejection),
        block=tuple(block),
        coupled=tuple(coupled),
        block_drawn=block_length(target_probs, draft, weights),
    )


def overlap(target_probs: Distribution, draft_probs: Distribution, weight: Any = 1) -> Any:
    """sum(min(w p, q)): for w = 1 the chance that a token drawn from q stands under rejection (2211.17192)."""
    return np.minimum(weight * target_probs.probs_of(draft_probs.tokens), draft_probs.probs).sum()


def block_length(target_probs: Sequence[Distribution], draft: Draft, weights: Sequence[Any]) -> Any:
    """E[tau] for this path: tau is the largest i whose own draw succeeds, with chance h_i; `weights` are its w_i."""
    length: Any = 0
    none_longer: Any = 1
    for count in range(len(weights) - 1, 0, -1):
        chance = block_acceptance(target_probs, draft, weights, count)
        length += count * chance * none_longer
        none_longer *= 1 - chance
    return length


def agreement(target_probs: Distribution, draft_probs: Distribution) -> Any:
    """The chance that argmax(log p + G) and argmax(log q + G) are the same token, exactly.

    log p_i + G_i is largest where E_i / p_i is least, E exponential. Both pick i with the chance
    1 / sum_j max(p_j / p_i, q_j / q_i) (Moulton and Jiang, 1809.04052). Sorted by p / q, the maximum is the first
    term before i and the second behind it, so cumulative sums give all of them.
    """
    p, q = _shared(target_probs, draft_probs)
    if not len(p):
        return target_probs.probs[:1].sum() * 0
    order = np.argsort(-_ratio(p, q), kind="stable")
    p, q = p[order], q[order]
    before = target_probs.probs.sum() - p.sum() + np.cumsum(p)
    behind = draft_probs.probs.sum() - np.cumsum(q)
    return (p * q / (q * before + p * np.maximum(behind, q[:1] * 0))).sum()


def agreement_on(target_probs: Distribution, draft_probs: Distribution, token: int) -> Any:
    """The chance that the coupled draw from p is `token` where the one from q is."""
    p, q = _shared(target_probs, draft_probs)
    chance, drawn = target_probs.prob(token), draft_probs.prob(token)
    if not chance > 0:
        return chance
    first = p * drawn >= q * chance
    before = target_probs.probs.sum() - p.sum() + p[first].sum()
    behind = draft_probs.probs.sum() - q[first].sum()
    return chance / (drawn * before + chance * behind)


def _shared(target_probs: Distribution, draft_probs: Distribution) -> tuple[Any, Any]:
    """p and q of the tokens that both can draw."""
    p, q = target_probs.probs_of(draft_probs.tokens), draft_probs.probs
    both = (p > 0) & (q > 0)
    return p[both], q[both]


def _ratio(p: Any, q: Any) -> Any:
    with np.errstate(over="ignore"):  # infinite is as good as large, to sort by
        return p / q


def best(probs: Distribution) -> int:
    """The likeliest token."""
    tokens: TokenArray = probs.tokens
    return int(tokens[int(np.argmax(probs.probs))])
