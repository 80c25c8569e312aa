"""The body of POST /v1/responses."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from localspec.server.schemas import Body, Items, JsonObject, Named, Sampling


class TextFormat(Body):
    """What the answer must look like."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: JsonObject | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Body):
    """Options for the text. `verbosity` is accepted and has no effect."""

    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(Body):
    """How much is thought. `effort` goes to templates that know it; "none" switches thinking off."""

    effort: str | None = None
    summary: str | None = None


class ResponseRequest(Sampling):
    """POST /v1/responses."""

    input: str | Items[JsonObject]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    tools: Items[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    metadata: Named[str] | None = None
    user: str | None = None
    truncation: str | None = None
    include: Items[str] | None = None
    top_logprobs: int | None = None
    background: bool | None = None
    conversation: str | JsonObject | None = None
    prompt: JsonObject | None = None
