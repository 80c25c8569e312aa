"""LLM: what an application holds."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from localspec.decoding.control import Controller, FixedLength
from localspec.decoding.loop import Generation, run
from localspec.decoding.sampling import SamplingParams
from localspec.decoding.stats import Stats
from localspec.engine import Engine, StrPath, engine_options
from localspec.errors import DecodeCancelled, EngineBusy, EngineClosed, InvalidRequest, PromptTooLong
from localspec.hub.catalogue import DEFAULT_PAIR, pair
from localspec.hub.store import Store
from localspec.text.answer import AnswerText
from localspec.text.prompt import render_prompt, text_prompt

DEFAULT_DRAFT_TOKENS = 3
"""Tokens drafted a round where nobody chose."""

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Completion:
    """A finished answer.

    ids: its tokens without the end-of-generation id. finish_reason: "stop", "length" or "cancelled".
    seed: reproduces the answer with the same settings. drafting: whether tokens were drafted, and why not.
    notice: one sentence for the user, or "".
    """

    text: str
    ids: tuple[int, ...]
    finish_reason: str
    stats: Stats
    seed: int
    drafting: str
    notice: str = ""


@dataclass(frozen=True)
class Chunk:
    """A piece of an answer: what one round committed. The last one carries the completion."""

    text: str
    tokens: tuple[int, ...] = ()
    completion: Completion | None = None


class LLM:
    """A target, with a draft where there is one. A context manager; `close` is idempotent.

    One answer runs at a time: a second thread waits for the first. `cancel` works from any thread.
    """

    def __init__(self, engine: Engine, draft_tokens: int | str = "auto") -> None:
        """Use `from_pair` or `from_files`."""
        self._engine: Engine | None = engine
        self._draft_tokens = check_draft_tokens(draft_tokens)
        self._turn = threading.Lock()
        self._owner: int | None = None

    @classmethod
    def from_pair(
        cls,
        name: str = DEFAULT_PAIR,
        *,
        home: StrPath | None = None,
        draft_tokens: int | str = "auto",
        **options: Any,
    ) -> LLM:
        """Load a pair that `localspec pull` fetched. `options` are those of `EngineOptions`.

        Raises `UnknownPair`, `NotDownloaded` and what `from_files` raises.
        """
        store = Store(Path(home) if home is not None else None)
        target, draft = store.pair_paths(pair(name), with_draft=not options.get("no_draft"))
        return cls.from_files(target, draft, draft_tokens=draft_tokens, **options)

    @classmethod
    def from_files(
        cls,
        target: StrPath,
        draft: StrPath | None = None,
        *,
        draft_tokens: int | str = "auto",
        **options: Any,
    ) -> LLM:
        """Load GGUF files. Without a draft, repeated text is drafted from the conversation itself (n-grams).

        Raises `InvalidRequest`, `ModelFileError`, `PairingError`, `ModelLoadError` or `BackendError`.
        """
        check_draft_tokens(draft_tokens)
        return cls(Engine(target, draft, engine_options(options)), draft_tokens)

    @property
    def engine(self) -> Engine:
        """Both loaded models. Raises `EngineClosed` after `close`."""
        if self._engine is None:
            raise EngineClosed("The engine was closed.", "Load it again.")
        return self._engine

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the user about settings that were clamped or ignored at load."""
        return tuple(self.engine.warnings)

    @property
    def settings(self) -> dict[str, object]:
        """Settings in effect for both models, ready for JSON."""
        return {**self.engine.describe(), "draft_tokens": self._draft_tokens, "drafting": self.drafting}

    @property
    def drafting(self) -> str:
        """Whether tokens are drafted by default, and why not."""
        return self._describe_drafting(self._draft_tokens)

    def chat(
        self,
        messages: Messages,
        *,
        params: SamplingParams | None = None,
        draft_tokens: int | str | None = None,
        **overrides: Any,
    ) -> Iterator[Chunk]:
        """Answer a conversation: dicts with `role` and `content`, through the model's own chat template.

        overrides: fields of `SamplingParams`. Raises `InvalidRequest`, `TemplateError`, `PromptTooLong`.
        """
        ids = render_prompt(self.engine.target.model, self.engine.template, messages)
        return self._start(ids, params, draft_tokens, overrides)

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        params: SamplingParams | None = None,
        draft_tokens: int | str | None = None,
        **overrides: Any,
    ) -> Iterator[Chunk]:
        """Continue a raw prompt, text or token ids. Raises `InvalidRequest`, `PromptTooLong`."""
        ids = text_prompt(self.engine.target.model, prompt) if isinstance(prompt, str) else list(prompt)
        return self._start(ids, params, draft_tokens, overrides)

    def generate(self, prompt: str | Sequence[int] | Messages, **arguments: Any) -> Completion:
        """The whole answer to a text, token ids or a conversation; arguments as for `stream` and `chat`."""
        is_chat = not isinstance(prompt, str) and any(isinstance(item, Mapping) for item in prompt)
        chunks = self.chat(prompt, **arguments) if is_chat else self.stream(prompt, **arguments)  # type: ignore[arg-type]
        completion = None
        for chunk in chunks:
            completion = chunk.completion
        assert completion is not None, "the last chunk carries the completion"
        return completion

    def cancel(self) -> None:
        """Stop the running answer, from any thread; it ends with finish reason `cancelled`."""
        if self._engine is not None and self._turn.locked():
            self._engine.cancel.set()

    def close(self) -> None:
        """Stop what runs and free everything. Idempotent."""
        self.cancel()
        if self._owner == threading.get_ident():
            raise EngineBusy(
                "An answer is still being read in this thread.", "Read it to its end or close it first."
            )
        with self._turn:
            engine, self._engine = self._engine, None
            if engine is not None:
                engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(
        self,
        ids: list[int],
        params: SamplingParams | None,
        draft_tokens: int | str | None,
        overrides: dict[str, Any],
    ) -> Iterator[Chunk]:
        """Check everything now, so that a bad request fails at the call and not at the first chunk."""
        params = sampling_params(params, overrides)
        length = self._draft_tokens if draft_tokens is None else check_draft_tokens(draft_tokens)
        self._check_prompt(ids)
        answer = AnswerText(self.engine.target.model.piece, self.engine.target.model.eog_tokens, params.stop)
        return self._answer(ids, params, length, answer)

    def _check_prompt(self, ids: list[int]) -> None:
        context = self.engine.target
        if not ids:
            raise InvalidRequest("The prompt is empty.", "Give at least one token.")
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < context.n_vocab:
                raise InvalidRequest(
                    f"The prompt holds {token!r}.", f"Token ids are whole numbers below {context.n_vocab}."
                )
        if len(ids) > context.n_ctx:
            raise PromptTooLong(
                f"The prompt has {len(ids)} tokens and the context holds {context.n_ctx}.",
                "Shorten it, or load the model with a larger context (-c, n_ctx).",
                num_tokens=len(ids),
                n_ctx=context.n_ctx,
            )

    def _answer(
        self, ids: list[int], params: SamplingParams, length: int | str, answer: AnswerText
    ) -> Iterator[Chunk]:
        with self._my_turn():
            engine = self.engine
            seed = params.seed if params.seed is not None else secrets.randbits(63)
            stats = Stats(prompt_tokens=len(ids))
            controller = make_controller(length)
            generation = Generation(
                engine.session, engine.drafter, controller, params, ids, seed=seed, check=answer.check
            )
            stats.cached_tokens = generation.num_cached
            for _ in self._rounds(generation, stats):
                yield Chunk(answer.take(), answer.take_ids())
            completion = Completion(
                text="",
                ids=tuple(answer.ids),
                finish_reason=generation.finish_reason or "cancelled",
                stats=stats,
                seed=seed,
                drafting=self._describe_drafting(length),
                notice=self._notice(generation),
            )
            rest = answer.finish()
            yield Chunk(rest, (), replace(completion, text=answer.text))

    def _rounds(self, generation: Generation, stats: Stats) -> Iterator[None]:
        """Once for every round that committed something, until the end or a cancel."""
        try:
            for step in run(generation):
                stats.add(step)
                if step.tokens:
                    yield
                if self.engine.cancel.is_set:
                    return
        except DecodeCancelled:
            return

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        if self._owner == threading.get_ident():
            raise EngineBusy(
                "Another answer is still being read in this thread.", "Read it to its end or close it."
            )
        with self._turn:
            self._owner = threading.get_ident()
            self.engine.cancel.clear()
            try:
                yield
            finally:
                self._owner = None

    def _describe_drafting(self, length: int | str) -> str:
        reason = self.engine.no_draft_reason
        if reason or length in ("off", 0):
            return f"off: {reason or 'asked for'}"
        kind = "" if self.engine.draft else " from repeated text"
        return f"on, up to {_fixed_length(length)} tokens a round{kind}"

    def _notice(self, generation: Generation) -> str:
        n_ctx = self.engine.target.n_ctx
        if generation.finish_reason == "length" and len(generation.sequence) > n_ctx:
            return f"The context of {n_ctx} tokens is full: the answer ends here."
        return ""


def sampling_params(params: SamplingParams | None, overrides: dict[str, Any]) -> SamplingParams:
    """`params` with `overrides`. Raises `InvalidRequest` naming an unknown field."""
    unknown = sorted(set(overrides) - set(SamplingParams.__dataclass_fields__))
    if unknown:
        raise InvalidRequest(
            f"There is no sampling parameter {', '.join(unknown)}.",
            f"Known ones are {', '.join(SamplingParams.__dataclass_fields__)}.",
        )
    return replace(params or SamplingParams(), **overrides)


def check_draft_tokens(value: int | str) -> int | str:
    """A draft length: "auto", "off" or a number. Raises `InvalidRequest` otherwise."""
    valid = value in ("auto", "off") or (
        isinstance(value, int) and not isinstance(value, bool) and value >= 0
    )
    if not valid:
        raise InvalidRequest(f"draft_tokens is {value!r}.", "It must be auto, off or a number, 0 or more.")
    return value


def make_controller(length: int | str) -> Controller:
    """The controller for a checked draft length."""
    return FixedLength(_fixed_length(length))


def _fixed_length(length: int | str) -> int:
    if isinstance(length, int):
        return length
    return 0 if length == "off" else DEFAULT_DRAFT_TOKENS
