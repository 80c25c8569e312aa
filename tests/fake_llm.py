"""A stand-in for `localspec.LLM` whose answers are known beforehand."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from localspec.answers.conversation import Conversation
from localspec.answers.queue import AnswerQueue
from localspec.answers.request import AnswerOptions, Chunk, Completion
from localspec.answers.stream import AnswerStream
from localspec.answers.ticket import Ticket
from localspec.decoding.params import SamplingParams
from localspec.decoding.stats import Stats
from localspec.errors import DecodeError

SETTINGS = {
    "library": {"name": "llama.cpp", "build": "llama-cpp-python 0", "reason": "asked for"},
    "target": {"file": "/models/target.gguf", "n_ctx": 4096},
    "draft": {"file": "/models/draft.gguf", "n_ctx": 4096},
}
TARGET = SimpleNamespace(
    n_ctx=4096,
    n_vocab=0x110000,
    weights=SimpleNamespace(
        metadata=SimpleNamespace(
            tokenizer_model="letters", tokenizer_pre="", tokens=(b"a",), token_types=b"\1"
        )
    ),
)
"""The target, with the vocabulary that a saved conversation is checked by."""
Messages = list[dict[str, str]]


class Letters:
    """Every character is a token."""

    add_bos = False
    bos_text = ""
    control_literals: frozenset[str] = frozenset()
    name = "letters"

    def tokenize(self, text: str, *, parse_special: bool, add_bos: bool = False) -> list[int]:
        return list(map(ord, text))

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return chr(token).encode()


class Template:
    """`role`, `content`, each with a mark behind it, from which the messages can be read back."""

    def render(self, messages: Messages, **_variables: Any) -> str:
        return "".join(f"{message['role']}\x02{message['content']}\x03" for message in messages) + "\x04"

    @staticmethod
    def read(text: str) -> Messages:
        # An answer whose ids were kept stands behind the opening of the answer, without a role.
        text = re.sub(r"\x04(?=.)", "assistant\x02", text, flags=re.DOTALL).rstrip("\x04")
        pairs = [part.partition("\x02") for part in text.split("\x03") if part]
        return [{"role": role, "content": content} for role, _, content in pairs]


class FakeLLM:
    """Echoes the conversation as `role:content` items.

    A question that begins with one of these words gets another answer: `slow` gives words until cancelled,
    `silent` gives nothing until cancelled, `fail` raises after its first word, `say TEXT` gives TEXT,
    `full` fills the context, `cut` reaches the longest answer, `plain` drafts nothing.
    """

    def __init__(
        self, drafting: str = "on, 3 tokens a round", warnings: tuple[str, ...] = (), hint: str = ""
    ) -> None:
        self.drafting, self.hint = drafting, hint
        self.warnings = warnings
        self.settings = {**SETTINGS, "drafting": drafting}
        self.calls: list[dict[str, Any]] = []
        self.closed = False
        self._cancelled = threading.Event()
        self._queue = AnswerQueue(self._cancelled)  # type: ignore[arg-type]

    def conversation(self, system: str = "", **defaults: Any) -> Conversation:
        """As `LLM.conversation`."""
        return Conversation(self, system, **defaults)  # type: ignore[arg-type]

    @contextmanager
    def using(self) -> Iterator[Any]:
        """As `LLM.using`, with what a conversation and a chat need of an engine."""
        engine = SimpleNamespace(
            vocab=Letters(), template=Template(), most_draft_tokens=31, target=TARGET, sessions={}
        )
        engine.holding = lambda tokens: engine
        yield engine

    exclusive = using

    def token_bytes(self, ids: Sequence[int]) -> bytes:
        """As `LLM.token_bytes`."""
        return "".join(map(chr, ids)).encode()

    def unload(self) -> bool:
        """As `LLM.unload`: nothing is loaded."""
        return True

    def stream(
        self,
        prompt: Sequence[int],
        *,
        params: SamplingParams | None = None,
        draft_tokens: int | str | None = None,
        **options: Any,
    ) -> AnswerStream:
        """As `LLM.stream`."""
        assert set(options) <= set(AnswerOptions.__annotations__), "an option that LLM does not have"
        messages = Template.read("".join(map(chr, prompt)))
        if "seed" in options:
            params = replace(params or SamplingParams(), seed=options.pop("seed"))
        self.calls.append({"messages": messages, "params": params, "draft_tokens": draft_tokens, **options})
        ticket = self._queue.ticket()
        chunks = self._answer(ticket, messages, params or SamplingParams(), draft_tokens)
        return AnswerStream(self._queue, ticket, chunks)

    def close(self) -> None:
        """As `LLM.close`."""
        self.closed = True

    def _answer(
        self, ticket: Ticket, messages: Messages, params: SamplingParams, draft_tokens: int | str | None
    ) -> Iterator[Chunk]:
        with self._queue.admit(ticket) as mine:
            yield from self._chunks(messages if mine else [], params, draft_tokens)

    def _chunks(
        self, messages: Messages, params: SamplingParams, draft_tokens: int | str | None
    ) -> Iterator[Chunk]:
        kind = messages[-1]["content"].split(" ")[0] if messages else "cancelled"
        text, count = "", 0
        for piece in self._pieces(kind, messages):
            text, count = text + piece, count + 1
            yield Chunk(piece, tuple(map(ord, piece)))
        stats = Stats(tokens=count, rounds=1, decode_seconds=0.5, prompt_tokens=7)
        if kind != "plain":
            stats.drafted, stats.accepted = 4, 3
        yield Chunk(
            "",
            (),
            Completion(
                text=text,
                ids=tuple(map(ord, text)),
                finish_reason=self._finish_reason(kind),
                stats=stats,
                seed=params.seed or 0,
                drafting=f"{self.drafting} (asked for {draft_tokens})",
                notice="The context of 4096 tokens is full." if kind == "full" else "",
            ),
        )

    def _finish_reason(self, kind: str) -> str:
        if kind == "cancelled" or self._cancelled.is_set():
            return "cancelled"
        return "length" if kind == "cut" else "stop"

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
