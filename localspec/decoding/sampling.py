"""Raw logits to a distribution. The same function makes the target's and the draft's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.params import SamplingParams
from localspec.errors import DecodeError, NoTokenLeft

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


def kl_divergence(rows: NDArray[Any], others: NDArray[Any]) -> NDArray[np.float64]:
    """sum(p log(p / q)) in nats, of each pair of rows of raw logits (n, V), p being that of `rows`: shape (n,)."""
    log_p, log_q = (
        logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        for logits in (np.asarray(side, dtype=np.float64) for side in (rows, others))
    )
    return np.asarray((np.exp(log_p) * (log_p - log_q)).sum(axis=-1))


def distribution(logits: Logits, params: SamplingParams, history: Sequence[int] = ()) -> Distribution:
    """The distribution that penalties, bias, filters and temperature make of one row of raw logits.

    logits:  shape (V,), float32, not changed.
    history: every id before the position this row predicts; read by the penalties only.
    Raises `DecodeError` when the row holds no finite logit or a NaN, `NoTokenLeft` when `logit_bias` leaves none.
    """
    return choose(adjusted(logits, params, history), params, raw=logits)


def choose(logits: Logits, params: SamplingParams, raw: Logits) -> Distribution:
    """Filters and temperature on logits that everything else was applied to; `raw` is the row as the model gave it.

    Raises `DecodeError` when there is no finite logit or a NaN, `NoTokenLeft` when options took them all.
    """
    best = int(np.argmax(logits))  # the first NaN, if there is one
    if not math.isfinite(logits[best]):
        raise _no_choice(raw, float(logits[best]), best)
    if params.greedy and params.typical_p == 1:
        return Distribution.point(best)  # which no other filter takes away
    tokens, values = candidates(logits, params)
    if params.greedy:
        return Distribution.point(int(tokens[np.argmax(values)]))
    scaled = (values - values.max()) / params.temperature
    return Distribution.normalised(tokens, np.exp(scaled))


def adjusted(logits: Logits, params: SamplingParams, history: Sequence[int]) -> Logits:
    """Bias and penalties (llama.cpp's formulas): a copy, or the row itself where there are none."""
    if not params.logit_bias and not (params.penalised and history):
        return logits
    logits = logits.copy()
    for token, bias in params.logit_bias.items():
        if token < len(logits):
            logits[token] += bias
    if params.penalised:
        window = history if params.repeat_last_n == -1 else history[-params.repeat_last_n :]
        seen, counts = np.unique(np.asarray(window, dtype=np.int64), return_counts=True)
        known = seen < len(logits)
        seen, counts = seen[known], counts[known]
        values = logits[seen]
        values = np.where(values > 0, values / params.repeat_penalty, values * params.repeat_penalty)
        logits[seen] = values - counts * params.frequency_penalty - params.presence_penalty
    return logits


def _no_choice(raw: Logits, value: float, token: int) -> DecodeError | NoTokenLeft:
    if value == -math.inf and math.isfinite(raw[int(np.argmax(raw))]):
        return NoTokenLeft(
            "logit_bias and the other options leave no token that could come next.",
            "They must leave at least one.",
            name="logit_bias",
        )
    return DecodeError(
        f"The model returned a logit of {value} for token {token}.",
        "Its file may be damaged: `localspec.pull` verifies the files of a pair.",
        command="Its file may be damaged: `localspec pull NAME` verifies the files of a pair.",
        code=0,
    )


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


MOST_IN_COLUMN, COLUMNS_PER_ID = 128, 8
"""Of the columns by whose largest numbers a search is narrowed: so many ids in each, and so many columns at least."""


def largest(logits: Logits, count: int) -> TokenArray:
    """Ids of the `count` largest finite logits, ascending; ties go to the lower id."""
    height = min(len(logits) // (COLUMNS_PER_ID * count), MOST_IN_COLUMN)
    if height > 1:
        # As many columns hold a number of at least `bound`, which leaves a few hundred of the vocabulary to look at.
        columns = logits[: len(logits) // height * height].reshape(height, -1)
        maxima = columns.max(axis=0)
        bound = np.partition(maxima, len(maxima) - count)[len(maxima) - count]
        near = np.flatnonzero(logits >= bound)
        if len(near) < len(logits):
            return near[_largest(logits[near], count)]
    return _largest(logits, count)


def _largest(logits: Logits, count: int) -> TokenArray:
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
