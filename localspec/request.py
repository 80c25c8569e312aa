"""What goes into an answer and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.decoding.sampling import SamplingParams
from localspec.decoding.stats import Stats
from localspec.errors import InvalidRequest, PromptTooLong

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Completion:
    """A finished answer.

    ids: its tokens without the end-of-generation id. finish_reason: "stop", "length" or "cancelled".
    seed: the one asked for, which gives the same text with any draft; None: the answer does not repeat.
    drafting: whether tokens were drafted, and why not.
    notice: one sentence for the user, or "".
    """

    text: str
    ids: tuple[int, ...]
    finish_reason: str
    stats: Stats
    seed: int | None
    drafting: str
    notice: str = ""


@dataclass(frozen=True)
class Chunk:
    """A piece of an answer: what one round committed. The last one carries the completion."""

    text: str
    tokens: tuple[int, ...] = ()
    completion: Completion | None = None


@dataclass(frozen=True)
class Request:
    """A checked request. draft_tokens: "auto", "off" or a number; prediction: ids the answer may resemble."""

    ids: list[int]
    params: SamplingParams
    draft_tokens: int | str
    prediction: tuple[int, ...] = ()


def checked_prompt(ids: Sequence[int], n_vocab: int, n_ctx: int) -> list[int]:
    """Prompt ids that fit. Raises `InvalidRequest` or `PromptTooLong`."""
    if not ids:
        raise InvalidRequest("The prompt is empty.", "Give at least one token.")
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < n_vocab:
            raise InvalidRequest(
                f"The prompt holds {token!r}.", f"Token ids are whole numbers below {n_vocab}."
            )
    if len(ids) > n_ctx:
        raise PromptTooLong(
            f"The prompt has {len(ids)} tokens and the context holds {n_ctx}.",
            "Shorten it, or load the model with a larger context (-c, n_ctx).",
            num_tokens=len(ids),
            n_ctx=n_ctx,
        )
    return list(ids)


def sampling_params(params: SamplingParams | None, overrides: dict[str, Any]) -> SamplingParams:
    """`params` with `overrides`. Raises `InvalidRequest` naming an unknown field."""
    unknown = sorted(set(overrides) - set(SamplingParams.__dataclass_fields__))
    if unknown:
        raise InvalidRequest(
            f"There is no sampling parameter {', '.join(unknown)}.",
            f"Known ones are {', '.join(SamplingParams.__dataclass_fields__)}.",
        )
    return replace(params or SamplingParams(), **overrides)


def check_draft_tokens(value: int | str) -> int | str:
    """A draft length: "auto", "off" or a number. Raises `InvalidRequest` otherwise."""
    valid = value in ("auto", "off") or (
        isinstance(value, int) and not isinstance(value, bool) and value >= 0
    )
    if not valid:
        raise InvalidRequest(f"draft_tokens is {value!r}.", "It must be auto, off or a number, 0 or more.")
    return 0 if value == "off" else value
