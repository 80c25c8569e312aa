"""A stand-in for `localspec.LLM` whose answers are known beforehand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from localspec.answers.request import AnswerOptions, Chunk, Completion, Messages
from localspec.decoding.params import SamplingParams
from localspec.decoding.stats import Stats
from localspec.errors import DecodeError

SETTINGS = {
    "target": {"file": "/models/target.gguf", "n_ctx": 4096},
    "draft": {"file": "/models/draft.gguf", "n_ctx": 4096},
}


class FakeLLM:
    """Echoes the conversation as `role:content` items.

    A question that begins with one of these words gets another answer: `slow` gives words until cancelled,
    `silent` gives nothing until cancelled, `fail` raises after its first word, `say TEXT` gives TEXT,
    `full` fills the context, `plain` drafts nothing.
    """

    def __init__(self, drafting: str = "on, 3 tokens a round", warnings: tuple[str, ...] = ()) -> None:
        self.drafting = drafting
        self.warnings = warnings
        self.settings = {**SETTINGS, "drafting": drafting}
        self.calls: list[dict[str, Any]] = []
        self.closed = False
        self._cancelled = threading.Event()

    def chat(
        self,
        messages: Messages,
        *,
        params: SamplingParams | None = None,
        draft_tokens: int | str | None = None,
        **options: Any,
    ) -> Iterator[Chunk]:
        """As `LLM.chat`."""
        assert set(options) <= set(AnswerOptions.__annotations__), "an option that LLM does not have"
        given = {"messages": list(messages), "params": params, "draft_tokens": draft_tokens}
        self.calls.append({**given, **options})
        self._cancelled.clear()
        return self._answer(messages, params or SamplingParams(), draft_tokens)

    def cancel(self) -> None:
        """As `LLM.cancel`."""
        self._cancelled.set()

    def close(self) -> None:
        """As `LLM.close`."""
        self.closed = True

    def _answer(
        self, messages: Messages, params: SamplingParams, draft_tokens: int | str | None
    ) -> Iterator[Chunk]:
        question = messages[-1]["content"]
        kind = question.split(" ")[0]
        text, count = "", 0
        for piece in self._pieces(kind, messages):
            text, count = text + piece, count + 1
            yield Chunk(piece, (count,))
        stats = Stats(tokens=count, rounds=1, decode_seconds=0.5, prompt_tokens=7)
        if kind != "plain":
            stats.drafted, stats.accepted = 4, 3
        yield Chunk(
            "",
            (),
            Completion(
                text=text,
                ids=tuple(range(1, count + 1)),
                finish_reason="cancelled" if self._cancelled.is_set() else "stop",
                stats=stats,
                seed=params.seed or 0,
                drafting=f"{self.drafting} (asked for {draft_tokens})",
                notice="The context of 4096 tokens is full." if kind == "full" else "",
            ),
        )

    def _pieces(self, kind: str, messages: Messages) -> Iterator[str]:
        if kind in ("slow", "silent"):
            while not self._cancelled.wait(0.02):
                if kind == "slow":
                    yield "word "
        elif kind == "fail":
            yield "half"
            raise DecodeError("The pass failed.", "Try again.", code=-3)
        elif kind == "say":
            yield messages[-1]["content"].removeprefix("say ")
        else:
            yield from (f"{message['role']}:{message['content']} " for message in messages)
