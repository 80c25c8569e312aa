"""Raw logits to a distribution. The same function makes the target's and the draft's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.checks import as_integer, as_number, shown
from localspec.decoding.distribution import Distribution, TokenArray
from localspec.errors import DecodeError, InvalidRequest

Logits = NDArray[np.float32]

MIN_TEMPERATURE = 1e-4
"""Below this a temperature cannot be told from 0 in float32 logits: it is greedy."""
MAX_BIAS = 1e4
"""Far beyond the spread of any model's logits, and far from what float32 cannot hold."""


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn. Validated once; raises `InvalidRequest` naming the field. numpy's numbers are numbers.

    Order, as in llama.cpp: penalties and bias, top_k, top_p, min_p, temperature last.
    temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off; max_tokens None means until the end.
    The penalties look at the last `repeat_last_n` tokens of prompt and answer (-1: all of them).
    logit_bias: token id to what is added to its logit, from -1e4 to 1e4, or -inf: never.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    stop: Sequence[str] = ()

    def __post_init__(self) -> None:
        checked: dict[str, object] = {
            name: _checked_number(name, getattr(self, name), low, high) for name, low, high in _FLOAT_RANGES
        }
        checked["top_k"] = _checked_integer("top_k", self.top_k, 0)
        checked["repeat_last_n"] = _checked_integer("repeat_last_n", self.repeat_last_n, -1)
        for name in ("seed", "max_tokens"):
            if getattr(self, name) is not None:
                checked[name] = _checked_integer(name, getattr(self, name), 0)
        if self.seed is not None and self.seed >= 2**64:
            raise _invalid("seed", self.seed, "a whole number below 2**64")
        checked["stop"] = _checked_stops(self.stop)
        checked["logit_bias"] = MappingProxyType(_checked_bias(self.logit_bias))
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < MIN_TEMPERATURE

    @property
    def penalised(self) -> bool:
        """Whether a distribution depends on the tokens before it beyond the logits."""
        return self.repeat_last_n != 0 and (
            self.repeat_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0
        )

    def bans_all(self, n_vocab: int) -> bool:
        """Whether `logit_bias` leaves none of the ids below `n_vocab`."""
        banned = sum(bias == -math.inf and token < n_vocab for token, bias in self.logit_bias.items())
        return banned >= n_vocab


_FLOAT_RANGES = (
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repeat_penalty", 1e-3, 100.0),
    ("frequency_penalty", -100.0, 100.0),
    ("presence_penalty", -100.0, 100.0),
)


def distribution(logits: Logits, params: SamplingParams, history: Sequence[int] = ()) -> Distribution:
    """The distribution that `params` make of one row of raw logits.

    logits:  shape (V,), float32, not changed.
    history: every id before the position this row predicts; read by the penalties only.
    Raises `DecodeError` when the row holds no finite logit or a NaN, `InvalidRequest` when `logit_bias` leaves none.
    """
    raw = logits
    if params.logit_bias or (params.penalised and history):
        logits = _adjusted(logits, params, history)
    best = int(np.argmax(logits))  # the first NaN, if there is one
    if not math.isfinite(logits[best]):
        raise _no_choice(raw, float(logits[best]), best)
    if params.greedy:
        return Distribution.point(best)
    tokens, values = _candidates(logits, params)
    scaled = (values - values.max()) / params.temperature
    return Distribution.normalised(tokens, np.exp(scaled))


def _no_choice(raw: Logits, value: float, token: int) -> DecodeError | InvalidRequest:
    if value == -math.inf and math.isfinite(raw[int(np.argmax(raw))]):
        return InvalidRequest(
            "logit_bias is -inf for every token that could come next.",
            "It must leave at least one.",
            name="logit_bias",
        )
    return DecodeError(
        f"The model returned a logit of {value} for token {token}.",
        "Its file may be damaged: `localspec pull NAME` verifies the files of a pair.",
        code=0,
    )


def _adjusted(logits: Logits, params: SamplingParams, history: Sequence[int]) -> Logits:
    """A copy with bias and penalties applied (llama.cpp's formulas)."""
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


def _candidates(logits: Logits, params: SamplingParams) -> tuple[TokenArray, NDArray[np.float64]]:
    """The ids that survive top_k, top_p and min_p, ascending, with their logits."""
    total = None
    if 0 < params.top_k < len(logits):
        tokens = _largest(logits, params.top_k)
    elif params.top_p < 1:
        tokens, total = _covering(logits, params.top_p)
    else:
        tokens = np.flatnonzero(logits > -np.inf)
    values = logits[tokens].astype(np.float64)
    kept = _nucleus(values, params.top_p, total) & (values >= values.max() + _log(params.min_p))
    return tokens[kept], values[kept]


def _largest(logits: Logits, count: int) -> TokenArray:
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
        tokens = _largest(logits, count)
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


def _checked_number(name: str, value: object, low: float, high: float) -> float:
    number = as_number(value)
    if number is None or not low <= number <= high:
        raise _invalid(name, value, f"a number from {low:g} to {high:g}")
    return number


def _checked_integer(name: str, value: object, low: int) -> int:
    number = as_integer(value)
    if number is None or number < low:
        raise _invalid(name, value, f"a whole number, {low} or more")
    return number


def _checked_stops(stop: object) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else stop
    if isinstance(stops, bytes) or not isinstance(stops, Sequence):
        raise _invalid("stop", stop, "one or several strings")
    if not all(isinstance(text, str) and text for text in stops):
        raise _invalid("stop", stop, "one or several strings, none of them empty")
    return tuple(stops)


def _checked_bias(bias: object) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise _invalid("logit_bias", bias, "a mapping of token ids to numbers")
    checked: dict[int, float] = {}
    for token, value in bias.items():
        number = as_number(value)
        if number is None or not (abs(number) <= MAX_BIAS or number == -math.inf):
            raise _invalid("logit_bias", value, f"a number from -{MAX_BIAS:g} to {MAX_BIAS:g}, or -inf")
        checked[_checked_integer("logit_bias", token, 0)] = number
    return checked


def _invalid(name: str, value: object, wanted: str) -> InvalidRequest:
    return InvalidRequest(f"{name} is {shown(value)}.", f"It must be {wanted}.", name=name, value=value)
