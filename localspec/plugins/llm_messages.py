"""The messages of an `llm` prompt, as `LLM.render` takes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import llm
from llm.parts import Message, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """OpenAI's messages. Raises `llm.ModelError` for a part that is no text."""
    plain: list[dict[str, Any]] = []
    for message in messages:
        plain += _results(message.parts) if message.role == "tool" else [_plain(message)]
    return plain


def _plain(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": _text(message.parts)}
    thoughts = "".join(part.text for part in message.parts if isinstance(part, ReasoningPart))
    calls = [_call(part) for part in message.parts if isinstance(part, ToolCallPart)]
    if thoughts:
        plain["reasoning_content"] = thoughts
    if calls:
        plain["tool_calls"] = calls
    return plain


def _text(parts: Sequence[Part]) -> str:
    for part in parts:
        if not isinstance(part, TextPart | ReasoningPart | ToolCallPart | ToolResultPart):
            raise llm.ModelError(
                f"A message holds a part of the kind {type(part).__name__}. This model reads text only."
            )
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def _call(part: ToolCallPart) -> dict[str, Any]:
    function = {"name": part.name, "arguments": json.dumps(part.arguments)}
    return {"id": part.tool_call_id, "type": "function", "function": function}


def _results(parts: Sequence[Part]) -> list[dict[str, Any]]:
    return [
        {"role": "tool", "name": part.name, "tool_call_id": part.tool_call_id, "content": part.output}
        for part in parts
        if isinstance(part, ToolResultPart)
    ]
