"""How tokens are drawn: one answer's options, validated once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from localspec.checks import as_integer, as_number, check_names, shown
from localspec.errors import InvalidRequest

MIN_TEMPERATURE = 1e-4
"""Below this a temperature cannot be told from 0 in float32 logits: it is greedy."""
MAX_LOGPROBS = 100
"""Likeliest tokens that may be reported with each token."""
MAX_BIAS = 1e4
"""Far beyond the spread of any model's logits, and far from what float32 cannot hold."""


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn. Validated once; raises `InvalidRequest` naming the field. numpy's numbers are numbers.

    Order: penalties and bias, what may not come at all, top_n_sigma, top_k, typical_p, top_p, min_p, temperature last
    (llama.cpp's order; each looks at what the ones before it left).
    temperature 0 is greedy: the likeliest of what is left. top_n_sigma and top_k 0, typical_p and top_p 1, min_p 0 are
    off; max_tokens None means until the end. min_tokens: an end of generation cannot come before so many tokens;
    ignore_eos: it never can.
    logprobs: how many of the likeliest tokens are reported with each token and its own; None: nothing is.
    The penalties look at the last `repeat_last_n` tokens of prompt and answer (-1: all of them).
    logit_bias: token id to what is added to its logit, from -1e4 to 1e4, or -inf: never.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    stop: Sequence[str] = ()

    def __post_init__(self) -> None:
        checked: dict[str, object] = {
            name: _checked_number(name, getattr(self, name), low, high) for name, low, high in _FLOAT_RANGES
        }
        checked["top_k"] = _checked_integer("top_k", self.top_k, 0)
        checked["repeat_last_n"] = _checked_integer("repeat_last_n", self.repeat_last_n, -1)
        checked["min_tokens"] = _checked_integer("min_tokens", self.min_tokens, 0)
        for name in ("seed", "max_tokens", "logprobs"):
            if getattr(self, name) is not None:
                checked[name] = _checked_integer(name, getattr(self, name), 0)
        if self.seed is not None and self.seed >= 2**64:
            raise _invalid("seed", self.seed, "a whole number below 2**64")
        if self.logprobs is not None and self.logprobs > MAX_LOGPROBS:
            raise _invalid("logprobs", self.logprobs, f"a whole number up to {MAX_LOGPROBS}")
        if not isinstance(self.ignore_eos, bool):
            raise _invalid("ignore_eos", self.ignore_eos, "True or False")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _invalid("min_tokens", self.min_tokens, f"at most max_tokens, {self.max_tokens}")
        checked["stop"] = _checked_stops(self.stop)
        checked["logit_bias"] = MappingProxyType(_checked_bias(self.logit_bias))
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[object, ...]:
        """For pickle and copy, which cannot read a mapping that nobody may change."""
        values = {**self.__dict__, "logit_bias": dict(self.logit_bias)}
        return partial(SamplingParams, **values), ()

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token that is left is always taken."""
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
    ("typical_p", 1e-6, 1.0),
    ("top_n_sigma", 0.0, 1000.0),
    ("repeat_penalty", 1e-3, 100.0),
    ("frequency_penalty", -100.0, 100.0),
    ("presence_penalty", -100.0, 100.0),
)


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


def sampling_params(params: SamplingParams | None, overrides: dict[str, Any]) -> SamplingParams:
    """`params` with `overrides`. Raises `InvalidRequest` for another type and naming an unknown field."""
    if params is not None and not isinstance(params, SamplingParams):
        raise InvalidRequest(
            f"params is {shown(params)}.", "Give a SamplingParams, or its fields by name.", name="params"
        )
    check_names(overrides, SamplingParams.__dataclass_fields__)
    return replace(params or SamplingParams(), **overrides)


def checked_bias(params: SamplingParams, n_vocab: int) -> SamplingParams:
    """`params` whose `logit_bias` fits a vocabulary. Raises `InvalidRequest` naming an id that is not in it."""
    beyond = max(params.logit_bias, default=0)
    if beyond >= n_vocab:
        raise InvalidRequest(
            f"logit_bias holds the token {beyond}.",
            f"Token ids are whole numbers from 0 to {n_vocab - 1}.",
            name="logit_bias",
            value=beyond,
        )
    if params.bans_all(n_vocab):
        raise InvalidRequest(
            f"logit_bias is -inf for all {n_vocab} tokens.", "It must leave at least one.", name="logit_bias"
        )
    return params
