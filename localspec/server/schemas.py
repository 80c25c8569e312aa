"""The bodies of requests. null is as good as absent, and fields that are not listed are ignored, as OpenAI does."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field
from pydantic_core import PydanticCustomError


def _finite(value: Any) -> Any:
    """`value`, refused if it holds infinities or NaN: pydantic reads them, and no JSON can say them."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, float) and not math.isfinite(value):
        raise PydanticCustomError("finite", "JSON with finite numbers")
    for item in items:
        _finite(item)
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_finite)]
T = TypeVar("T")


class _FirstFault(FailFast):
    """`FailFast` that can stand in a union."""

    __hash__ = object.__hash__


Items = Annotated[list[T], _FirstFault()]
"""A list whose first fault is enough: a million of them would stop every other request for minutes."""
Named = Annotated[dict[str, T], _FirstFault()]
"""The same for an object."""


class Body(BaseModel):
    """Numbers and texts are not converted into each other."""

    model_config = ConfigDict(strict=True, extra="ignore", hide_input_in_errors=True)


class Part(Body):
    """A piece of a message's content; `text` is the only kind this server can give to a model."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Message(Body):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Items[Part] | None = None
    name: str | None = None
    tool_calls: Items[JsonObject] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class StreamOptions(Body):
    """include_usage: one more chunk with the usage before the end."""

    include_usage: bool | None = None


class JsonSchema(Body):
    """A named schema. Without `schema` any JSON is allowed."""

    name: str | None = None
    description: str | None = None
    schema_: JsonObject | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """What the answer must look like. Beside `json_object`, `schema` is llama.cpp's and `value` Hugging Face's."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: JsonObject | bool | None = Field(None, alias="schema")
    value: JsonObject | bool | None = None


class Prediction(Body):
    """A text that the answer is expected to resemble: drafts come from it."""

    type: Literal["content"] | None = None
    content: str | Items[Part]


class Sampling(Body):
    """What every request for an answer may say. OpenAI's names, llama.cpp's names for the rest."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | Items[str] | None = None
    max_tokens: int | None = None
    n_predict: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Named[float] | Items[Items[int | float | bool | str]] | None = None
    response_format: ResponseFormat | None = None
    json_schema: JsonObject | bool | None = None
    grammar: str | None = None
    prediction: Prediction | None = None
    draft_tokens: int | str | None = None
    verify: str | None = None
    priority: int | None = None


class ChatRequest(Sampling):
    """POST /v1/chat/completions."""

    messages: Items[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Items[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: JsonObject | None = None
    modalities: Items[str] | None = None
    audio: JsonObject | None = None
    functions: Items[JsonObject] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class CompletionRequest(Sampling):
    """POST /v1/completions."""

    prompt: str | Items[str] | Items[int] | Items[Items[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class TokenizeRequest(Body):
    """POST /tokenize, as llama.cpp's server has it."""

    content: str
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(Body):
    """POST /detokenize."""

    tokens: Items[int]
