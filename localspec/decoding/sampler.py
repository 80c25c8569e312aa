"""Sampler: one answer's options, grammar and callbacks, on every row with that row's own history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.checks import shown
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampling import Distribution, Logits, adjusted, choose
from localspec.errors import InvalidRequest

LogitsProcessor = Callable[[Sequence[int], Logits], Logits | None]
"""Called with every id before the position and a copy of the row's logits, shape (V,) with the target's V; returns the
logits to go on with, or None when it changed the copy. It must depend on nothing else: the draft's rows ask it too."""


class Constraint(Protocol):
    """Which tokens may come next, as a function of the answer so far. What it was asked before leaves no trace."""

    def allowed(self, answer: Sequence[int]) -> NDArray[np.bool_]:
        """Mask (V,) of the ids that may follow `answer`. A finished answer allows ends of generation only."""

    def forced(self, answer: Sequence[int], limit: int) -> tuple[int, ...]:
        """At most `limit` ids that must follow `answer`, each the only one allowed."""

    def likely(self, answer: Sequence[int], limit: int) -> tuple[int, ...]:
        """At most `limit` ids that most likely follow: their text is certain, and not how it is cut into tokens."""

    def count_legal(self, answer: Sequence[int], tokens: Sequence[int]) -> int:
        """How many of `tokens` may follow `answer` in this order."""


@dataclass(frozen=True)
class Sampler:
    """Turns a row of raw logits, the target's or the draft's, into the distribution its token is drawn from.

    num_prompt: ids of a history that are prompt.     eog: ends of generation.
    n_vocab: width of the target's rows, which processors are given; 0: every row has it.
    Raises `InvalidRequest` for options that exclude each other.
    """

    params: SamplingParams
    num_prompt: int = 0
    eog: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    processors: tuple[LogitsProcessor, ...] = ()
    n_vocab: int = 0

    def __post_init__(self) -> None:
        if self.constraint is None:
            return
        for name in ("ignore_eos", "min_tokens"):
            if value := getattr(self.params, name):
                raise InvalidRequest(
                    f"{name} is {value} beside a grammar or schema.",
                    "Leave one of them out: where the grammar is finished, nothing but the end may come.",
                    name=name,
                )

    @property
    def reads_history(self) -> bool:
        """Whether a distribution depends on the tokens before it beyond the logits."""
        params = self.params
        return (
            params.penalised or params.min_tokens > 0 or self.constraint is not None or bool(self.processors)
        )

    def __call__(
        self, row: Logits, history: Sequence[int], known: NDArray[np.bool_] | None = None
    ) -> Distribution:
        """The distribution of the token behind `history`: every id before it, prompt included, where that is read.

        row: shape (V,), float32, not changed; a draft's row may be shorter than the target's.
        known: mask (V,) of the ids that may come, all that a draft of another vocabulary has; None: every id.
        Raises `NoTokenLeft` when nothing may come, `DecodeError` for a row without a finite logit.
        """
        logits = adjusted(row, self.params, history)
        if self.processors:
            # A draft that lacks ids of the target must not show: the same callback works with any draft.
            missing = max(self.n_vocab - len(row), 0)
            logits = np.pad(logits, (0, missing), constant_values=row.min())
            for processor in self.processors:
                logits = _processed(processor, history, logits)
            logits = logits[: len(row)]
        if known is not None:
            logits = np.where(known, logits, np.float32(-np.inf))
        if self.constraint is not None:
            allowed = self.constraint.allowed(history[self.num_prompt :])[: len(row)]
            logits = np.where(allowed, logits, np.float32(-np.inf))
        if self._end_is_banned(history):
            logits = logits.copy()
            logits[[token for token in self.eog if token < len(row)]] = -np.inf
        return choose(logits, self.params, raw=row)

    def count_legal(self, history: Sequence[int], tokens: Sequence[int]) -> int:
        """How many of `tokens`, copied from somewhere, the grammar lets follow `history`."""
        if self.constraint is None or not tokens:
            return len(tokens)
        return self.constraint.count_legal(history[self.num_prompt :], tokens)

    def _end_is_banned(self, history: Sequence[int]) -> bool:
        params = self.params
        return params.ignore_eos or (
            params.min_tokens > 0 and len(history) - self.num_prompt < params.min_tokens
        )


def _reals(values: object) -> Logits:
    array = np.asarray(values)
    if np.iscomplexobj(array):
        raise TypeError("complex numbers have no order")
    return array.astype(np.float32, copy=False)


def _processed(processor: LogitsProcessor, history: Sequence[int], logits: Logits) -> Logits:
    """What a callback makes of the logits. Raises `InvalidRequest` for what is no row of logits."""
    given = logits.copy()
    # Copies: what a callback does to them must reach neither the next one nor the grammar.
    returned = processor(list(history), given)
    try:
        with np.errstate(over="ignore"):  # too large for float32 becomes infinity, which is refused below
            result = given if returned is None else _reals(returned)
    except (TypeError, ValueError):
        raise InvalidRequest(
            f"A logits processor returned {shown(returned)}.",
            f"It must return the logits it was given, shape {logits.shape}, or None.",
            name="logits_processors",
        ) from None
    if result.shape != logits.shape:
        raise InvalidRequest(
            f"A logits processor returned an array of shape {result.shape}.",
            f"It must return the logits it was given, shape {logits.shape}, or None.",
            name="logits_processors",
        )
    if np.isnan(result).any() or np.isposinf(result).any():
        raise InvalidRequest(
            "A logits processor returned NaN or infinity.",
            "Logits are finite, or -inf: never.",
            name="logits_processors",
        )
    return result
