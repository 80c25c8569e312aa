"""Reads the answers of models that think or call tools."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.server.reader import Delta
from localspec.text.reasoning import ReasoningSplitter, ReasoningTags
from localspec.text.tool_calls import CallDelta, Piece, ToolCallParser


class AnswerReader:
    """Thoughts, text and tool calls of one answer, as OpenAI's deltas.

    reasoning_tokens: tokens of thoughts, including those that came in one piece with the closing tag.
    """

    def __init__(self, tags: ReasoningTags | None, parser: ToolCallParser | None) -> None:
        self.reasoning_tokens = 0
        self._splitter = ReasoningSplitter(tags)
        self._parser = parser

    def push(self, text: str, num_tokens: int = 0) -> list[Delta]:
        """What became certain with `text`, which `num_tokens` tokens made."""
        thought = self._splitter.thinking
        deltas = self._deltas(*self._splitter.push(text), last=False)
        self.reasoning_tokens += num_tokens if thought or self._splitter.thinking else 0
        return deltas

    def finish(self) -> list[Delta]:
        """What was held back, when no more text comes."""
        return self._deltas(*self._splitter.finish(), last=True)

    def finish_reason(self, reason: str) -> str:
        """`tool_calls` if the answer calls tools and was not cut off, else `reason`."""
        calls = self._parser.num_calls if self._parser else 0
        return "tool_calls" if calls and reason == "stop" else reason

    def _deltas(self, reasoning: str, answer: str, *, last: bool) -> list[Delta]:
        deltas: list[Delta] = [{"reasoning_content": reasoning}] if reasoning else []
        return deltas + [_delta(piece) for piece in self._pieces(answer, last)]

    def _pieces(self, answer: str, last: bool) -> Sequence[Piece]:
        if self._parser is None:
            return [answer] if answer else []
        pieces = self._parser.push(answer) if answer else []
        return pieces + self._parser.finish() if last else pieces


def _delta(piece: Piece) -> Delta:
    if not isinstance(piece, CallDelta):
        return {"content": piece}
    if not piece.name:
        return {"tool_calls": [{"index": piece.index, "function": {"arguments": piece.arguments}}]}
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"tool_calls": [{"index": piece.index, "id": piece.id, "type": "function", "function": function}]}
