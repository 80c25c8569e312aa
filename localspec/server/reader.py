"""From an answer's text to the fields of OpenAI's message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

Delta = dict[str, Any]


class Reader(Protocol):
    """Takes one answer's text as it comes and says what the client sees of it.

    A delta is OpenAI's: `content`, `reasoning_content` or `tool_calls` (a list with `index` in each).
    reasoning_tokens: how many tokens were thoughts.
    """

    reasoning_tokens: int

    def push(self, text: str, num_tokens: int = 0) -> list[Delta]:
        """What became certain with `text`, which `num_tokens` tokens made."""
        ...

    def finish(self) -> list[Delta]:
        """What was held back, when no more text comes."""
        ...

    def finish_reason(self, reason: str) -> str:
        """`reason`, or `tool_calls` where the answer calls tools."""
        ...


def merged(deltas: Iterable[Delta]) -> Delta:
    """The message that the deltas make together."""
    message: Delta = {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        for name in ("content", "reasoning_content"):
            if delta.get(name) is not None:
                message[name] = (message.get(name) or "") + delta[name]
        for call in delta.get("tool_calls", ()):
            _merge_call(calls, call)
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    elif message["content"] is None:
        message["content"] = ""
    return message


def _merge_call(calls: dict[int, dict[str, Any]], delta: dict[str, Any]) -> None:
    call = calls.setdefault(
        delta["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
    )
    call["id"] += delta.get("id") or ""
    for name, text in (delta.get("function") or {}).items():
        call["function"][name] += text or ""
