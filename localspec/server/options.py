"""From a request's fields to the keyword arguments of `LLM.stream`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from localspec.decoding.params import SamplingParams
from localspec.decoding.seeds import attempt_seed
from localspec.server.faults import bad_request
from localspec.server.schemas import ChatRequest, CompletionRequest, Part, ResponseFormat, Sampling
from localspec.server.settings import Settings
from localspec.text.messages import content_text

MOST_CHOICES = 128
MOST_TOP_LOGPROBS = 20
FORMS = ("grammar", "json_schema")
"""Options that say what an answer must look like. Those of a request replace those of the server, all of them."""
_AS_IS = (
    "temperature", "top_p", "min_p", "typical_p", "top_n_sigma", "repeat_penalty", "repeat_last_n",
    "frequency_penalty", "presence_penalty", "min_tokens", "ignore_eos",
)  # fmt: skip


def answer_options(body: Sampling, settings: Settings) -> dict[str, Any]:
    """Arguments of `LLM.stream` for the first choice. Raises `ApiError` or `InvalidRequest` naming the field."""
    given: dict[str, Any] = {name: getattr(body, name) for name in _AS_IS if getattr(body, name) is not None}
    given |= _lengths(body) | _logprobs(body)
    if body.top_k is not None:
        given["top_k"] = max(body.top_k, 0)  # llama.cpp's clients switch it off with -1
    if body.seed is not None:
        given["seed"] = None if body.seed == -1 else _unsigned(body.seed)
    if body.stop is not None:
        given["stop"] = body.stop
    if body.logit_bias is not None:
        given["logit_bias"] = _bias(body.logit_bias)
    form = _form(body)
    kept = {name: value for name, value in settings.answering.items() if form is None or name not in FORMS}
    options = kept | {"params": replace(settings.params, **given)}
    for name in ("draft_tokens", "verify"):
        if getattr(body, name) is not None:
            options[name] = getattr(body, name)
    if body.prediction is not None:
        options["prediction"] = text_of(body.prediction.content, "prediction.content")
    return options | (form or {})


def field_names(body: Sampling) -> dict[str, str]:
    """The library's option names -> the fields in which this request gave them."""
    names = {
        "text": "prompt",
        "max_tokens": "n_predict" if body.max_tokens is None and body.n_predict is not None else "max_tokens",
    }
    if isinstance(body, ChatRequest):
        names |= {"prompt": "messages", "text": "messages", "logprobs": "top_logprobs"}
        if body.tools and body.json_schema is None:
            names["json_schema"] = "tools"
        if body.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
    if _schema(body.response_format) is not None:
        names["json_schema"] = "response_format"
    return names


def wants_stream(body: Sampling) -> bool:
    """Whether a stream is asked for. Raises `ApiError` for stream options without a stream."""
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options is given without stream. Set stream to true.", "stream_options")
    return bool(body.stream)


def wants_usage(body: Sampling) -> bool:
    """Whether a stream ends with its usage."""
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def choices(body: Sampling) -> int:
    """How many answers are asked for. Raises `ApiError`."""
    n = 1 if body.n is None else body.n
    if not 1 <= n <= MOST_CHOICES:
        raise bad_request(f"n is {n}. It must be a number from 1 to {MOST_CHOICES}.", "n")
    return n


def choice_options(options: dict[str, Any], index: int) -> dict[str, Any]:
    """The options of choice `index`. With a seed, each choice gets its own; the first keeps the one given."""
    params: SamplingParams = options["params"]
    if index == 0 or params.seed is None:
        return options
    return options | {"params": replace(params, seed=attempt_seed(params.seed, index))}


def text_of(content: str | Sequence[Part] | None, param: str) -> str:
    """A message's content as one text, as `LLM.chat` takes it. Raises `InvalidRequest` naming a part."""
    parts = content if content is None or isinstance(content, str) else [dict(part) for part in content]
    return content_text(parts, param)


def _lengths(body: Sampling) -> dict[str, int | None]:
    wanted = body.n_predict if body.max_tokens is None else body.max_tokens
    if isinstance(body, ChatRequest) and body.max_completion_tokens is not None:
        wanted = body.max_completion_tokens
    if wanted is None:
        return {}
    return {"max_tokens": None if wanted == -1 else wanted}


def _logprobs(body: Sampling) -> dict[str, int]:
    if isinstance(body, CompletionRequest):
        return {} if body.logprobs is None else {"logprobs": body.logprobs}
    assert isinstance(body, ChatRequest)
    if not body.logprobs:
        if body.top_logprobs:
            raise bad_request("top_logprobs is given without logprobs. Set logprobs to true.", "top_logprobs")
        return {}
    wanted = body.top_logprobs or 0
    if not 0 <= wanted <= MOST_TOP_LOGPROBS:
        raise bad_request(
            f"top_logprobs is {wanted}. It must be a number from 0 to {MOST_TOP_LOGPROBS}.", "top_logprobs"
        )
    return {"logprobs": wanted}


def _unsigned(seed: int) -> int:
    """The seed without its sign, modulo 2**64: OpenAI's may be negative."""
    return seed % 2**64 if -(2**63) <= seed < 0 else seed


def _bias(bias: dict[str, float] | list[list[int | float | bool]]) -> dict[int, float]:
    pairs: list[tuple[Any, Any]] = list(bias.items()) if isinstance(bias, dict) else []
    if isinstance(bias, list):
        for pair in bias:
            if len(pair) != 2:
                raise bad_request(
                    "logit_bias holds an entry that is no pair of token and number.", "logit_bias"
                )
            pairs.append((pair[0], -math.inf if pair[1] is False else pair[1]))
    return {_token(token): value for token, value in pairs}


def _token(token: object) -> int:
    text = str(token)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise bad_request(
            f"logit_bias holds the token {text[:40]!r}. Tokens are whole numbers, 0 or more.", "logit_bias"
        )
    return int(text)


def _form(body: Sampling) -> dict[str, Any] | None:
    """What the answer must look like; {} where it is said to be free, None where nothing is said."""
    forms: dict[str, Any] = {}
    if body.grammar:
        forms["grammar"] = body.grammar
    if body.json_schema is not None:
        forms["json_schema"] = body.json_schema
    schema = _schema(body.response_format)
    if schema is not None:
        forms["json_schema"] = schema
    return forms if forms or body.response_format is not None else None


def _schema(form: ResponseFormat | None) -> dict[str, Any] | bool | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        given = form.value if form.schema_ is None else form.schema_
        return {"type": "object"} if given is None else given
    if form.json_schema is None:
        raise bad_request(
            "response_format.json_schema is missing.", "response_format.json_schema",
            "missing_required_parameter",
        )  # fmt: skip
    return {} if form.json_schema.schema_ is None else form.json_schema.schema_
