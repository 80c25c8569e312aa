"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from localspec.answers.request import Chunk, Completion
from localspec.answers.stream import Start
from localspec.llm import LLM
from localspec.server.faults import ApiError
from localspec.server.logprobs import chat_logprobs
from localspec.server.options import choice_options, choices, wants_usage
from localspec.server.plan import Plan, chat_plan
from localspec.server.reader import merged
from localspec.server.replies import DONE
from localspec.server.schemas import ChatRequest
from localspec.server.settings import Settings
from localspec.server.usage import timings, usage

Payload = dict[str, Any]


class ChatFormat:
    """Chat completions and their chunks: an `AnswerFormat`."""

    done = DONE

    def __init__(self, body: ChatRequest, llm: LLM, settings: Settings) -> None:
        self._body = body
        self._plan: Plan = chat_plan(body, llm, settings)
        self._warned = {"warnings": list(self._plan.warnings)} if self._plan.warnings else {}
        self._piece: Callable[[int], bytes] = lambda token: llm.token_bytes([token])
        self._readers = [self._plan.reader() for _ in range(choices(body))]
        self._completions: list[Completion] = []
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": settings.name,
            "system_fingerprint": "localspec",
        }
        first = llm.stream(self._plan.ids, **self._plan.options)  # refuses what is not right
        self.starts: list[Start] = [lambda: first]
        self.starts += [self._start(llm, index) for index in range(1, len(self._readers))]

    def _start(self, llm: LLM, index: int) -> Start:
        return lambda: llm.stream(self._plan.ids, **choice_options(self._plan.options, index))

    def opening(self, index: int) -> list[Payload]:
        """A chunk with the role; in the first of all, the warnings."""
        chunk = self._chunk(index, {"role": "assistant", "content": ""})
        return [chunk | (self._warned if index == 0 else {})]

    def events(self, index: int, chunk: Chunk) -> list[Payload]:
        """A chunk for each delta, and at the end one with the finish reason."""
        reader = self._readers[index]
        deltas = reader.push(chunk.text, len(chunk.tokens))
        payloads = [self._chunk(index, delta) for delta in deltas]
        if chunk.logprobs:
            payloads = payloads or [self._chunk(index, {"content": ""})]
            payloads[0]["choices"][0]["logprobs"] = chat_logprobs(chunk.logprobs, self._piece)
        if chunk.completion is not None:
            payloads += [self._chunk(index, delta) for delta in reader.finish()]
            reason = reader.finish_reason(chunk.completion.finish_reason)
            last = self._chunk(index, {}, reason)
            self._completions.append(chunk.completion)
            if len(self._completions) == len(self._readers):
                last["timings"] = timings([completion.stats for completion in self._completions])
            payloads.append(last)
        return payloads

    def closing(self) -> list[Payload]:
        """A chunk with the usage, if it was asked for."""
        if not wants_usage(self._body):
            return []
        return [
            {
                **self._head,
                "object": "chat.completion.chunk",
                "choices": [],
                "usage": self._usage(),
            }
        ]

    def failure(self, error: ApiError) -> Payload:
        """OpenAI's error object."""
        return error.body()

    def whole(self, chunks: dict[int, list[Chunk]]) -> Payload:
        """A chat completion."""
        self._completions = [
            completion for index in sorted(chunks) if (completion := chunks[index][-1].completion)
        ]
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(index, chunks[index]) for index in sorted(chunks)],
            "usage": self._usage(),
            "timings": timings([completion.stats for completion in self._completions]),
            **self._warned,
        }

    def _usage(self) -> Payload:
        return usage([self._completions], sum(reader.reasoning_tokens for reader in self._readers))

    def _choice(self, index: int, chunks: list[Chunk]) -> Payload:
        reader = self._readers[index]
        deltas = [
            delta for chunk in chunks for delta in reader.push(chunk.text, len(chunk.tokens))
        ] + reader.finish()
        completion = chunks[-1].completion
        assert completion is not None, "the last chunk carries the completion"
        logprobs = completion.logprobs
        return {
            "index": index,
            "message": {**merged(deltas), "refusal": None},
            "logprobs": None if logprobs is None else chat_logprobs(logprobs, self._piece),
            "finish_reason": reader.finish_reason(completion.finish_reason),
        }

    def _chunk(self, index: int, delta: Payload, reason: str | None = None) -> Payload:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        payload = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        return payload | ({"usage": None} if wants_usage(self._body) else {})
