"""Clients of a soak: on the engine in this process, or on a server."""

from __future__ import annotations

import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import httpx
import openai

from localspec import LLM
from localspec.errors import LocalspecError

Question = tuple[str, int]
NONSENSE, DROPPED, CANCELLED = 0.05, 0.15, 0.25
"""A request whose random number is below these makes no sense, is dropped after some pieces, or is cancelled."""


@dataclass(frozen=True)
class Solo:
    """What a question gets alone."""

    ids: tuple[int, ...]
    text: str


class Client(threading.Thread, ABC):
    """Asks until the deadline; counts what came out."""

    def __init__(self, alone: Mapping[Question, Solo], until: float, seed: int) -> None:
        super().__init__(daemon=True)
        self.counts: Counter[str] = Counter()
        self.random = random.Random(seed)
        self._alone, self._until = alone, until

    def run(self) -> None:
        """One request after the other."""
        while time.monotonic() < self._until:
            try:
                self._ask()
            except Exception as error:
                self.counts["failed"] += 1
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
                time.sleep(1.0)

    def _ask(self) -> None:
        question = self.random.choice(list(self._alone))
        kind = self.random.random()
        if kind < NONSENSE:
            refused = self.nonsense(question)
            self.counts["refused"] += refused
            self.counts["wrong"] += not refused
        elif kind < DROPPED:
            self.drop(question)
            self.counts["dropped"] += 1
        else:
            self.answer(question, self._alone[question], cancel=kind < CANCELLED)

    @abstractmethod
    def nonsense(self, question: Question) -> bool:
        """Ask for what is not possible; whether it was refused as it should be."""

    @abstractmethod
    def drop(self, question: Question) -> None:
        """Ask, and go away after a piece or two."""

    @abstractmethod
    def answer(self, question: Question, solo: Solo, cancel: bool) -> None:
        """Read an answer to its end, or `cancel` it on the way, and count it."""


BAD_OPTIONS: tuple[dict[str, object], ...] = (
    {"temperature": -1.0},
    {"max_tokens": "many"},
    {"no_such_option": 1},
    {"draft_tokens": -3},
)


class EngineClient(Client):
    """A client of an engine in this process."""

    def __init__(self, llm: LLM, alone: Mapping[Question, Solo], until: float, seed: int) -> None:
        super().__init__(alone, until, seed)
        self._llm = llm

    def nonsense(self, question: Question) -> bool:
        """Ask with options that make no sense."""
        try:
            self._llm.generate(question[0], **self.random.choice(BAD_OPTIONS))  # type: ignore[arg-type]
        except LocalspecError:
            return True
        return False

    def drop(self, question: Question) -> None:
        """Close the stream after a piece or two, or before the first."""
        stream = self._llm.stream(question[0], temperature=0, max_tokens=question[1])
        for _ in range(self.random.randrange(3)):
            next(stream, None)
        stream.close()

    def answer(self, question: Question, solo: Solo, cancel: bool) -> None:
        """Compare by ids."""
        stream = self._llm.stream(question[0], temperature=0, max_tokens=question[1])
        timer = threading.Timer(self.random.random(), stream.cancel) if cancel else None
        if timer:
            timer.start()
        completion = list(stream)[-1].completion
        if timer:
            timer.cancel()
        assert completion is not None, "the last chunk carries the completion"
        cancelled = completion.finish_reason == "cancelled"
        expected = solo.ids[: len(completion.ids)] if cancelled else solo.ids
        self.counts["cancelled" if cancelled else "answered"] += 1
        self.counts["wrong"] += completion.ids != expected
        self.counts["cached"] += completion.stats.cached_tokens > 0


MODEL = "soak"
"""What the server calls it."""
GONE = (openai.APITimeoutError, httpx.TimeoutException)
"""What the client raises where it hangs up: before an answer begins, and within one."""
BAD_FIELDS: tuple[dict[str, object], ...] = (
    {"temperature": -1.0},
    {"max_tokens": "many"},
    {"logit_bias": {"no id": 1}},
    {"prompt": None},
    {"n": 0},
)


class ServerClient(Client):
    """A client of a server, through OpenAI's own library."""

    def __init__(self, url: str, alone: Mapping[Question, Solo], until: float, seed: int) -> None:
        super().__init__(alone, until, seed)
        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)

    def nonsense(self, question: Question) -> bool:
        """Ask with fields that make no sense."""
        body = {"model": MODEL, "prompt": question[0]} | self.random.choice(BAD_FIELDS)
        try:
            self._client.post("/completions", body=body, cast_to=object)
        except openai.BadRequestError:
            return True
        return False

    def drop(self, question: Question) -> None:
        """Hang up after some pieces, or, as likely, after some time, which may be in the queue or the prefill."""
        prompt, max_tokens = question
        patience = self.random.random() if self.random.random() < 0.5 else None
        try:
            client = self._client if patience is None else self._client.with_options(timeout=patience)
            with client.completions.create(
                model=MODEL, prompt=prompt, max_tokens=max_tokens, temperature=0, stream=True
            ) as stream:
                for _ in range(self.random.randrange(3)):
                    next(stream, None)
        except GONE:
            self.counts["hung_up"] += 1

    def answer(self, question: Question, solo: Solo, cancel: bool) -> None:
        """Compare by text and number of tokens; cancel by hanging up on an answer that is not streamed."""
        prompt, max_tokens = question
        client = self._client.with_options(timeout=self.random.random()) if cancel else self._client
        if cancel or self.random.random() < 0.5:
            try:
                whole = client.completions.create(
                    model=MODEL, prompt=prompt, max_tokens=max_tokens, temperature=0
                )
            except GONE:
                self.counts["cancelled"] += 1
                return
            self._compare(solo, whole.choices[0].text, whole.usage)
            return
        text, usage = [], None
        for chunk in client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=max_tokens, temperature=0, stream=True,
            stream_options={"include_usage": True},
        ):  # fmt: skip
            text += [choice.text for choice in chunk.choices]
            usage = chunk.usage or usage
        self._compare(solo, "".join(text), usage)

    def _compare(self, solo: Solo, text: str, usage: openai.types.CompletionUsage | None) -> None:
        assert usage is not None, "every answer carries its usage"
        self.counts["answered"] += 1
        self.counts["wrong"] += text != solo.text or usage.completion_tokens != len(solo.ids)
        details = usage.prompt_tokens_details
        self.counts["cached"] += bool(details and details.cached_tokens)
