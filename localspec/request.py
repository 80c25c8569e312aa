"""What goes into an answer and what comes out of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from localspec.decoding.checks import as_integer, shown
from localspec.decoding.logprobs import TokenLogprob
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampler import Constraint, LogitsProcessor
from localspec.decoding.stats import Stats
from localspec.errors import InvalidRequest, PromptTooLong

Messages = Sequence[Mapping[str, Any]]
Listener = TypeVar("Listener", bound=Callable[..., object])
VERIFY = ("auto", "block", "rejection", "coupled")


class AnswerOptions(TypedDict, total=False):
    """Keyword arguments of `LLM.chat`, `stream` and `generate`, each of them optional.

    params:       a `SamplingParams`; its fields may also be given by name, and then go before it.
    draft_tokens: "auto", "off" or a number of tokens to draft in each round.
    verify:       accept rule: "block", "rejection", "coupled", or "auto": coupled with a seed, else block.
    prediction:   a text that the answer is expected to resemble, such as the file to be edited: a draft source.
    grammar:      the answer must match this GBNF grammar.
    json_schema:  the answer must be JSON that this schema (a dict, or its JSON text) describes; {} is any JSON.
    logits_processors: called with (ids, logits) for every row of both models, in turn; see `LogitsProcessor`.
    shown_tokens: texts of control tokens, such as "[TOOL_CALLS]", that the answer's text keeps.
    """

    params: SamplingParams | None
    draft_tokens: int | str | None
    verify: str
    prediction: str
    grammar: str | None
    json_schema: Mapping[str, Any] | str | bool | None
    logits_processors: Sequence[LogitsProcessor]
    shown_tokens: Sequence[str]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    repeat_penalty: float
    repeat_last_n: int
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    logprobs: int | None
    stop: Sequence[str]


@dataclass(frozen=True)
class Completion:
    """A finished answer.

    ids: its tokens without the end-of-generation id. finish_reason: "stop", "length" or "cancelled".
    seed: the one asked for, which gives the same text with any draft; None: the answer does not repeat.
    drafting: whether tokens were drafted, and why not. notice: one sentence for the user, or "".
    drafted: for each id, whether it came from the draft. logprobs: for each id, where they were asked for.
    """

    text: str
    ids: tuple[int, ...]
    finish_reason: str
    stats: Stats
    seed: int | None
    drafting: str
    notice: str = ""
    drafted: tuple[bool, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True)
class Chunk:
    """A piece of an answer: what one round committed. The last one carries the completion.

    tokens: ids, without the end of generation; their text may come later, when it is certain.
    drafted, logprobs: one for each of `tokens`; logprobs is empty where none were asked for.
    """

    text: str
    tokens: tuple[int, ...] = ()
    completion: Completion | None = None
    drafted: tuple[bool, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Request:
    """A checked request.

    draft_tokens: "auto" or a number. prediction: ids the answer may resemble. shown: control tokens kept in the text.
    """

    ids: list[int]
    params: SamplingParams
    draft_tokens: int | str
    verify: str = "auto"
    prediction: tuple[int, ...] = ()
    constraint: Constraint | None = None
    processors: tuple[LogitsProcessor, ...] = ()
    shown: frozenset[int] = frozenset()


def text_or_items(prompt: object) -> str | list[Any]:
    """A text as it is; token ids or messages, from any iterable, as a list. Raises `InvalidRequest`.

    An iterator can be read once only: what is to be asked about it is asked of the list.
    """
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, bytes | bytearray | memoryview):
        raise InvalidRequest(
            f"The prompt is a {type(prompt).__name__}.", "Decode it: a text must be a str.", name="prompt"
        )
    # The ids of a set have no order, and a dict is one message without its list.
    if isinstance(prompt, Mapping | Set) or not isinstance(prompt, Iterable):
        raise InvalidRequest(
            f"The prompt is {shown(prompt)}.", "Give a text, a list of token ids or messages.", name="prompt"
        )
    try:
        items = iter(prompt)
    except TypeError:  # a numpy array without a dimension
        raise InvalidRequest(f"The prompt is {shown(prompt)}.", "Give a list of it.", name="prompt") from None
    return list(items)


def checked_ids(ids: Iterable[int], n_vocab: int) -> list[int]:
    """Token ids of any number, from any iterable of them. Raises `InvalidRequest`."""
    items = text_or_items(ids)
    if isinstance(items, str):
        raise InvalidRequest("ids is a text.", "Give token ids.", name="ids")
    return [_checked_id(item, n_vocab, "ids") for item in items]


def checked_prompt(prompt: Iterable[int], n_vocab: int, n_ctx: int) -> list[int]:
    """Prompt ids that fit, from any iterable of them. Raises `InvalidRequest` or `PromptTooLong`."""
    items = text_or_items(prompt)
    if isinstance(items, str):
        raise InvalidRequest("The prompt is a text.", "Give its token ids.", name="prompt")
    if not items:
        raise InvalidRequest("The prompt is empty.", "Give at least one token.", name="prompt")
    if len(items) > n_ctx:
        raise PromptTooLong(
            f"The prompt has {len(items)} tokens and the context holds {n_ctx}.",
            "Shorten it, or load the model with a larger context (n_ctx, -c), where it was trained for one.",
            num_tokens=len(items),
            n_ctx=n_ctx,
        )
    return [_checked_id(item, n_vocab, "prompt") for item in items]


def _checked_id(item: object, n_vocab: int, name: str) -> int:
    token = as_integer(item)
    if token is None or not 0 <= token < n_vocab:
        raise InvalidRequest(
            f"{'The prompt' if name == 'prompt' else name} holds {shown(item)}.",
            f"Token ids are whole numbers from 0 to {n_vocab - 1}.",
            name=name,
        )
    return token


def sampling_params(params: SamplingParams | None, overrides: dict[str, Any]) -> SamplingParams:
    """`params` with `overrides`. Raises `InvalidRequest` for another type and naming an unknown field."""
    if params is not None and not isinstance(params, SamplingParams):
        raise InvalidRequest(
            f"params is {shown(params)}.", "Give a SamplingParams, or its fields by name.", name="params"
        )
    unknown = sorted(set(overrides) - set(SamplingParams.__dataclass_fields__))
    if unknown:
        raise InvalidRequest(
            f"There is no sampling parameter {', '.join(unknown)}.",
            f"Known ones are {', '.join(SamplingParams.__dataclass_fields__)}.",
        )
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


def check_draft_tokens(value: int | str) -> int | str:
    """A draft length: "auto" or a number, which "off" becomes. Raises `InvalidRequest` otherwise."""
    if isinstance(value, str) and value in ("auto", "off"):
        return 0 if value == "off" else str(value)
    number = as_integer(value)
    if number is None or number < 0:
        raise InvalidRequest(
            f"draft_tokens is {shown(value)}.",
            "It must be auto, off or a number, 0 or more.",
            name="draft_tokens",
        )
    return number


def check_verify(value: object) -> str:
    """The name of an accept rule. Raises `InvalidRequest` otherwise."""
    if not isinstance(value, str) or value not in VERIFY:
        raise InvalidRequest(
            f"verify is {shown(value)}.", f"It must be one of {', '.join(VERIFY)}.", name="verify"
        )
    return value


def checked_processors(value: object) -> tuple[LogitsProcessor, ...]:
    """Callbacks on logits. Raises `InvalidRequest` for what cannot be called."""
    given = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else (value,)
    if not all(callable(processor) for processor in given):
        raise InvalidRequest(
            f"logits_processors is {shown(value)}.",
            "Give a list of functions of (ids, logits).",
            name="logits_processors",
        )
    return given


def check_listener(name: str, value: Listener) -> Listener:
    """A function that a caller gives to be told something. Raises `InvalidRequest` for what cannot be called."""
    if not callable(value):
        raise InvalidRequest(
            f"{name} is {shown(value)}.", "Give a function of one argument, or leave it out.", name=name
        )
    return value


def checked_path(name: str, value: object) -> Path:
    """The path of a file or folder that an argument gives. Raises `InvalidRequest` naming the argument."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path:
        raise InvalidRequest(f"{name} is {shown(value)}.", "Give its path as a text or a Path.", name=name)
    return Path(path)
