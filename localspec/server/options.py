"""From a request's fields to the keyword arguments of `LLM.stream`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from localspec.decoding.params import SamplingParams
from localspec.decoding.seeds import attempt_seed
from localspec.llm import LLM
from localspec.server.faults import bad_request
from localspec.server.schemas import ChatRequest, CompletionRequest, Part, ResponseFormat, Sampling
from localspec.server.settings import Settings
from localspec.text.messages import checked_text, content_text

MOST_CHOICES = 128
MOST_TOP_LOGPROBS = 20
MOST_LOGPROBS = 5
MOST_BIAS = 100
_RANGES = (("temperature", 0, 2), ("frequency_penalty", -2, 2), ("presence_penalty", -2, 2))
"""OpenAI's, narrower than the engine's."""
FORMS = ("grammar", "json_schema")
"""Options that say what an answer must look like. Those of a request replace those of the server, all of them."""
_AS_IS = (
    "temperature", "top_p", "min_p", "typical_p", "top_n_sigma", "repeat_penalty", "repeat_last_n",
    "frequency_penalty", "presence_penalty", "min_tokens", "ignore_eos",
)  # fmt: skip


def answer_options(body: Sampling, settings: Settings, llm: LLM) -> dict[str, Any]:
    """Arguments of `LLM.stream` for the first choice. Raises `ApiError` or `InvalidRequest` naming the field."""
    _check_ranges(body)
    if isinstance(body, ChatRequest):
        _refuse_what_is_no_text(body)
    given: dict[str, Any] = {name: getattr(body, name) for name in _AS_IS if getattr(body, name) is not None}
    given |= _lengths(body) | _logprobs(body)
    if body.top_k is not None:
        given["top_k"] = max(body.top_k, 0)  # llama.cpp's clients switch it off with -1
    if body.seed is not None:
        given["seed"] = None if body.seed == -1 else _unsigned(body.seed)
    if body.stop is not None:
        given["stop"] = body.stop
    if body.logit_bias is not None:
        given["logit_bias"] = _bias(body.logit_bias, llm)
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


def _check_ranges(body: Sampling) -> None:
    """Raise `ApiError` for what OpenAI's API refuses and the engine would take."""
    for name, low, high in _RANGES:
        value = getattr(body, name)
        if value is not None and not low <= value <= high:
            raise bad_request(f"{name} is {value:g}. It must be a number from {low} to {high}.", name)
    echo = isinstance(body, CompletionRequest) and body.echo
    check_length("max_tokens", body.max_tokens, least=0 if echo else 1)
    if isinstance(body, ChatRequest):
        check_length("max_completion_tokens", body.max_completion_tokens)


def check_length(name: str, value: int | None, least: int = 1) -> None:
    """Raise `ApiError` for a longest answer below `least` tokens; -1 is llama.cpp's for one without a limit."""
    if value is not None and value < least and value != -1:
        raise bad_request(f"{name} is {value}. It must be a whole number, {least} or more.", name)


def _refuse_what_is_no_text(body: ChatRequest) -> None:
    """Raise `ApiError` for a field that asks for another kind of answer than is given here."""
    for index, kind in enumerate(body.modalities or ()):
        if kind != "text":
            name = f"modalities[{index}]"
            raise bad_request(f"{name} is {kind!r:.60}. This server answers with text only.", name)
    if body.audio is not None:
        raise bad_request("audio is given. This server answers with text only.", "audio")
    if body.functions:
        raise bad_request("functions is given. Write the functions as tools.", "functions")


def _lengths(body: Sampling) -> dict[str, int | None]:
    wanted = body.n_predict if body.max_tokens is None else body.max_tokens
    if isinstance(body, ChatRequest) and body.max_completion_tokens is not None:
        wanted = body.max_completion_tokens
    if wanted is None:
        return {}
    return {"max_tokens": None if wanted == -1 else wanted}


def _logprobs(body: Sampling) -> dict[str, int]:
    if isinstance(body, CompletionRequest):
        if body.logprobs is None:
            return {}
        _check_top("logprobs", body.logprobs, MOST_LOGPROBS)
        return {"logprobs": body.logprobs}
    assert isinstance(body, ChatRequest)
    if not body.logprobs:
        if body.top_logprobs:
            raise bad_request("top_logprobs is given without logprobs. Set logprobs to true.", "top_logprobs")
        return {}
    wanted = body.top_logprobs or 0
    _check_top("top_logprobs", wanted, MOST_TOP_LOGPROBS)
    return {"logprobs": wanted}


def _check_top(name: str, wanted: int, most: int) -> None:
    if not 0 <= wanted <= most:
        raise bad_request(f"{name} is {wanted}. It must be a number from 0 to {most}.", name)


def _unsigned(seed: int) -> int:
    """The seed without its sign, modulo 2**64: OpenAI's may be negative."""
    return seed % 2**64 if -(2**63) <= seed < 0 else seed


def _bias(bias: dict[str, float] | list[list[int | float | bool | str]], llm: LLM) -> dict[int, float]:
    """OpenAI's object of ids, or llama.cpp's pairs: of an id, or of a text each of whose tokens is meant."""
    if isinstance(bias, dict):
        for value in bias.values():
            if not abs(value) <= MOST_BIAS:
                raise bad_request(
                    f"logit_bias holds {value:g}. It must be numbers from -{MOST_BIAS} to {MOST_BIAS}.",
                    "logit_bias",
                )
        return {_token(token): value for token, value in bias.items()}
    found: dict[int, float] = {}
    for pair in bias:
        if len(pair) != 2 or isinstance(pair[1], str) or pair[1] is True:
            raise bad_request(
                "logit_bias holds an entry that is no pair of a token or text and a number.", "logit_bias"
            )
        token, value = pair[0], -math.inf if pair[1] is False else pair[1]
        found |= dict.fromkeys(_tokens(token, llm) if isinstance(token, str) else [_token(token)], value)
    return found


def _tokens(text: str, llm: LLM) -> list[int]:
    checked_text(text, "logit_bias", name="logit_bias")
    with llm.using() as engine:
        return engine.vocab.tokenize(text, parse_special=False)


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
