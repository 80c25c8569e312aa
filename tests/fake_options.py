"""Grammars and callbacks small enough to know everything about, and every option as a case for the laws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from localspec.decoding.params import SamplingParams
from localspec.decoding.sampler import Constraint, LogitsProcessor, Sampler
from localspec.decoding.sampling import Distribution, Logits, distribution

V = 3
"""Of the cases below."""
PROMPT = (0, 1)
END = 2
"""The end of generation, where a case has one."""


class NoTwice:
    """A grammar: no token twice in a row."""

    def __init__(self, n_vocab: int = V) -> None:
        self._n_vocab = n_vocab

    def allowed(self, answer: Sequence[int]) -> np.ndarray:
        mask = np.ones(self._n_vocab, dtype=bool)
        mask[list(answer[-1:])] = False
        return mask

    def forced(self, answer: Sequence[int], limit: int) -> tuple[int, ...]:
        return ()

    def likely(self, answer: Sequence[int], limit: int) -> tuple[int, ...]:
        """A guess, now and then of a token that is not even allowed."""
        return (len(answer) % 3,)[:limit]

    def count_legal(self, answer: Sequence[int], tokens: Sequence[int]) -> int:
        return counted(self, answer, tokens)


class Alternating(NoTwice):
    """A grammar: 2 at every third place of an answer, where it is the only one allowed; 0 or 1 elsewhere."""

    def allowed(self, answer: Sequence[int]) -> np.ndarray:
        mask = np.zeros(self._n_vocab, dtype=bool)
        mask[[2] if len(answer) % 3 == 2 else [0, 1]] = True
        return mask

    def forced(self, answer: Sequence[int], limit: int) -> tuple[int, ...]:
        return (2,)[:limit] if len(answer) % 3 == 2 else ()

    def likely(self, answer: Sequence[int], limit: int) -> tuple[int, ...]:
        return ()


def counted(constraint: Constraint, answer: Sequence[int], tokens: Sequence[int]) -> int:
    """How many of `tokens` are allowed, one by one."""
    count = 0
    while count < len(tokens) and constraint.allowed([*answer, *tokens[:count]])[tokens[count]]:
        count += 1
    return count


def shy(ids: Sequence[int], logits: Logits) -> None:
    """A callback that changes its copy: the last token becomes less likely, the more often it came."""
    logits[ids[-1]] -= 0.7 * list(ids).count(ids[-1])


def swaying(ids: Sequence[int], logits: Logits) -> Logits:
    """A callback that returns another row: token 0 at even places, nothing of token 1 at every fourth."""
    row = logits + np.float32(1.1) * (np.arange(len(logits)) == 0) * (len(ids) % 2 == 0)
    return np.where((np.arange(len(logits)) == 1) & (len(ids) % 4 == 3), -np.inf, row).astype(np.float32)


def unchanged(_prefix: Sequence[int], row: Logits) -> Logits:
    return row


def without_end(least: int) -> Callable[[Sequence[int], Logits], Logits]:
    """No END before `least` tokens of an answer."""

    def masked(prefix: Sequence[int], row: Logits) -> Logits:
        early = len(prefix) - len(PROMPT) < least
        return np.where((np.arange(len(row)) == END) & early, np.float32(-np.inf), row)

    return masked


def by_processors(prefix: Sequence[int], row: Logits) -> Logits:
    row = row.copy()
    shy(prefix, row)
    return swaying(prefix, row)


def by_grammar(constraint: Constraint) -> Callable[[Sequence[int], Logits], Logits]:
    def masked(prefix: Sequence[int], row: Logits) -> Logits:
        return np.where(constraint.allowed(prefix[len(PROMPT) :]), row, np.float32(-np.inf))

    return masked


@dataclass(frozen=True)
class Case:
    """One option switched on. `law` says in a line of its own what it makes of the target's row behind a prefix."""

    params: dict[str, Any] = field(default_factory=dict)
    law: Callable[[Sequence[int], Logits], Logits] = unchanged
    eog: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    processors: tuple[LogitsProcessor, ...] = ()

    def sampling(self, max_tokens: int) -> SamplingParams:
        off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        return SamplingParams(**{**off, **self.params, "max_tokens": max_tokens})

    def sampler(self, max_tokens: int) -> RememberingSampler:
        return RememberingSampler(
            self.sampling(max_tokens), len(PROMPT), self.eog, self.constraint, self.processors
        )

    def expected(self, row: Logits, prefix: Sequence[int]) -> Distribution:
        """The distribution behind `prefix`, made without a Sampler."""
        return distribution(self.law(prefix, row), self.sampling(9), prefix)


@dataclass(frozen=True)
class RememberingSampler(Sampler):
    """Makes no distribution twice: a law asks for the same few again and again."""

    made: dict[Any, Distribution] = field(default_factory=dict, compare=False)

    def __call__(self, row: Logits, history: Sequence[int], known: np.ndarray | None = None) -> Distribution:
        key = (row.tobytes(), None if known is None else known.tobytes(), *history)
        if key not in self.made:
            self.made[key] = super().__call__(row, history, known)
        return self.made[key]


def blind(sampler: Sampler) -> Sampler:
    """The same without what may not come at all: for faults that leave it out of some rows."""
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    return Sampler(params, sampler.num_prompt, sampler.eog)


ENDS = frozenset([END])
CASES = {
    "temperature .3": Case({"temperature": 0.3}),
    "temperature 2": Case({"temperature": 2.0}),
    "top_k": Case({"top_k": 2}),
    "top_p": Case({"top_p": 0.75}),
    "min_p": Case({"min_p": 0.25}),
    "typical_p": Case({"typical_p": 0.6}),
    "top_n_sigma": Case({"top_n_sigma": 1.5}),
    "repeat_penalty": Case({"repeat_penalty": 1.8, "repeat_last_n": 3}),
    "frequency_penalty": Case({"frequency_penalty": 0.6}),
    "presence_penalty": Case({"presence_penalty": 0.8, "repeat_last_n": 2}),
    "logit_bias": Case({"logit_bias": {1: 0.9, 2: -0.5}}),
    "ends": Case(eog=ENDS),
    "min_tokens": Case({"min_tokens": 3}, without_end(3), ENDS),
    "ignore_eos": Case({"ignore_eos": True}, without_end(99), ENDS),
    "processors": Case({}, by_processors, processors=(shy, swaying)),
    "no token twice": Case({}, by_grammar(NoTwice()), constraint=NoTwice()),
    "forced tokens": Case({}, by_grammar(Alternating()), constraint=Alternating()),
    "logprobs": Case({"logprobs": 2}),
    "all": Case(
        {
            "temperature": 1.3, "top_k": 3, "typical_p": 0.95, "top_p": 0.95, "min_p": 0.02, "repeat_penalty": 1.2,
            "frequency_penalty": 0.2, "logit_bias": {0: -0.3}, "min_tokens": 1, "logprobs": 0,
        },
        lambda prefix, row: without_end(1)(prefix, row), ENDS,
    ),
}  # fmt: skip
