"""What a chat request asks of the engine. The one seam for tools and reasoning: `chat_plan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.llm import LLM
from localspec.server.options import answer_options, text_of
from localspec.server.reader import PlainReader, Reader
from localspec.server.schemas import ChatRequest, Message
from localspec.server.settings import Settings


@dataclass(frozen=True)
class Plan:
    """ids: of the prompt. options: keyword arguments of `LLM.stream`. reader: makes one for each choice."""

    ids: list[int]
    options: dict[str, Any]
    reader: Callable[[], Reader]


def chat_plan(body: ChatRequest, llm: LLM, settings: Settings) -> Plan:
    """Render, tokenize and check: takes long for a long prompt, so not on the event loop. Raises what they raise."""
    return Plan(llm.tokenize(plain_messages(body.messages)), answer_options(body, settings), PlainReader)


def plain_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Messages as `LLM.chat` takes them. Raises `ApiError` naming a part that is no text."""
    return [
        {
            "role": "system" if message.role == "developer" else message.role,
            "content": text_of(message.content, f"messages[{index}].content"),
        }
        for index, message in enumerate(messages)
    ]
