"""Which tokens may be drawn: the filters on a row of logits, in llama.cpp's order."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.distribution import Logits, TokenArray
from localspec.decoding.params import SamplingParams

Values = NDArray[np.float64]


def candidates(logits: Logits, params: SamplingParams) -> tuple[TokenArray, Values]:
    """The ids that survive top_n_sigma, top_k, typical_p, top_p and min_p, ascending, with their logits.

    logits: shape (V,), at least one of them finite, not changed.
    """
    if params.top_n_sigma > 0:
        logits = _within_sigma(logits, params.top_n_sigma)
    total = None
    if 0 < params.top_k < len(logits):
        tokens = largest(logits, params.top_k)
    elif params.top_p < 1 and params.typical_p == 1:
        tokens, total = _covering(logits, params.top_p)
    else:
        tokens = np.flatnonzero(logits > -np.inf)
    values = logits[tokens].astype(np.float64)
    if params.typical_p < 1:
        kept = _typical(values, params.typical_p)
        tokens, values = tokens[kept], values[kept]
    kept = _nucleus(values, params.top_p, total) & (values >= values.max() + _log(params.min_p))
    return tokens[kept], values[kept]


def _within_sigma(logits: Logits, count: float) -> Logits:
    """Only logits within `count` standard deviations of the largest (Tang et al., 2411.07641)."""
    finite = logits[logits > -np.inf].astype(np.float64)
    return np.where(logits >= finite.max() - count * finite.std(), logits, np.float32(-np.inf))


def _typical(values: Values, mass_wanted: float) -> NDArray[np.bool_]:
    """Mask (m,) of the tokens of the most typical surprise, until they hold more than that mass.

    Meister et al., 2202.00666. Like llama.cpp's, which goes on where the mass is just reached; the tokens are those
    that can still come: one ruled out before has no surprise (llama.cpp's entropy is NaN then).
    """
    probs = np.exp(values - values.max())
    probs /= probs.sum()
    surprise = -np.log(np.maximum(probs, np.finfo(np.float64).tiny))
    order = np.argsort(np.abs(surprise - (probs * surprise).sum()), kind="stable")
    before = np.cumsum(probs[order]) - probs[order]
    kept = np.zeros(len(values), dtype=bool)
    kept[order] = before <= mass_wanted
    return kept


def largest(logits: Logits, count: int) -> TokenArray:
    """Ids of the `count` largest finite logits, ascending; ties go to the lower id."""
    cut = len(logits) - count
    threshold = np.partition(logits, cut)[cut]
    above = np.flatnonzero(logits > threshold)
    if threshold == -np.inf:
        return above
    ties = np.flatnonzero(logits == threshold)[: count - len(above)]
    return np.sort(np.concatenate((above, ties)))


def _covering(logits: Logits, top_p: float) -> tuple[TokenArray, float]:
    """Enough of the largest logits to hold top_p of the whole mass, and that mass in units of the largest.

    Grows the candidates instead of sorting the vocabulary.
    """
    mass = np.exp((logits - logits.max()).astype(np.float64))
    total = float(mass.sum())
    count = 64
    while count < len(logits):
        tokens = largest(logits, count)
        if mass[tokens].sum() >= top_p * total:
            return tokens, total
        count *= 8
    return np.flatnonzero(logits > -np.inf), total


def _nucleus(values: NDArray[np.float64], top_p: float, total: float | None = None) -> NDArray[np.bool_]:
    """Mask (m,) of the smallest set of largest logits whose mass reaches top_p of `total`."""
    if top_p >= 1:
        return np.ones(len(values), dtype=bool)
    order = np.argsort(-values, kind="stable")
    mass = np.exp(values[order] - values[order[0]])
    before = np.cumsum(mass) - mass
    kept = np.zeros(len(values), dtype=bool)
    kept[order] = before < top_p * (mass.sum() if total is None else total)
    kept[order[0]] = True
    return kept


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
