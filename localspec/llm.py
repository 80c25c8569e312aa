"""LLM: what an application holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack, cast

from localspec.answering import answer_chunks, make_request
from localspec.calibration import Notify, measured_costs, strict_sentence
from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.control import Controller, FixedLength
from localspec.engine import Engine, StrPath, engine_options
from localspec.errors import EngineClosed
from localspec.hub.catalogue import DEFAULT_PAIR, pair, warnings
from localspec.hub.folder import read_folder
from localspec.hub.home import home_folder
from localspec.hub.hubmodels import paths_on_disk
from localspec.hub.reference import required_reference
from localspec.hub.store import Store
from localspec.hub.usage import record_use
from localspec.llama.backend import close_at_exit
from localspec.policy import describe_drafting
from localspec.preparation import improved_engine, load_engine
from localspec.request import (
    AnswerOptions,
    Chunk,
    Completion,
    Messages,
    Request,
    check_draft_tokens,
    checked_path,
    text_or_items,
)
from localspec.text.prompt import render_prompt, text_prompt
from localspec.turns import AnswerStream, Ticket, Turns

EXIT_SECONDS = 5.0
"""How long the end of the interpreter waits for a running answer to stop."""


def _ignore(sentence: str) -> None:
    pass


class LLM:
    """A target, with a draft where there is one. A context manager; `close` is idempotent.

    One answer runs at a time: a second thread waits for the first. `cancel` and `close` work from any thread.
    """

    def __init__(self, engine: Engine, draft_tokens: int | str = "auto") -> None:
        """Use `from_pair`, `from_hub` or `from_files`."""
        self._engine: Engine | None = engine
        self._draft_tokens = draft_tokens
        self._home: Path | None = None
        self._asked_draft: StrPath | None = None
        self._adaptive: AdaptiveController | None = None
        self._turns = Turns(engine.cancel)
        close_at_exit(self)

    @classmethod
    def from_pair(
        cls,
        name: str = DEFAULT_PAIR,
        *,
        home: StrPath | None = None,
        draft_tokens: int | str = "auto",
        notify: Notify = _ignore,
        **options: Any,
    ) -> LLM:
        """Load a pair that `localspec pull` fetched. `options` are those of `EngineOptions`.

        notify: told in a sentence when something takes long. Raises `UnknownPair`, `NotDownloaded` and what
        `from_files` raises.
        """
        store = Store(None if home is None else home_folder(home))
        target, draft = store.pair_paths(pair(name, store.home), with_draft=not options.get("no_draft"))
        llm = cls.from_files(
            target, draft, home=store.home, draft_tokens=draft_tokens, notify=notify, **options
        )
        llm.engine.warnings += warnings(name, store.home)
        return llm

    @classmethod
    def from_folder(cls, folder: StrPath, **options: Any) -> LLM:
        """Load a folder that `localspec export` made: it is only read. Arguments as for `from_files`.

        Raises `CatalogueError` for a folder that is not whole, and what `from_files` raises.
        """
        _, target, draft = read_folder(Path(checked_path("folder", folder)))
        return cls.from_files(target, draft, **options)

    @classmethod
    def from_hub(
        cls,
        target: str,
        draft: str | None = None,
        *,
        home: StrPath | None = None,
        draft_tokens: int | str = "auto",
        notify: Notify = _ignore,
        **options: Any,
    ) -> LLM:
        """Load models of a hub's repositories, `org/repo:quant`, that `localspec pull` fetched and pinned.

        The network is not used. Arguments as for `from_files`; raises `NotDownloaded` and what that raises.
        """
        store = Store(None if home is None else home_folder(home))
        named = [target] if draft is None or options.get("no_draft") else [target, draft]
        paths = paths_on_disk([required_reference(name) for name in named], store)
        return cls.from_files(*paths, home=store.home, draft_tokens=draft_tokens, notify=notify, **options)

    @classmethod
    def from_files(
        cls,
        target: StrPath,
        draft: StrPath | None = None,
        *,
        home: StrPath | None = None,
        draft_tokens: int | str = "auto",
        notify: Notify = _ignore,
        **options: Any,
    ) -> LLM:
        """Load GGUF files. Without a draft, repeated text is drafted from the conversation itself (n-grams).

        With draft_tokens "auto" the cost of a pass is measured at the first load on this machine (seconds) and kept
        in `home`; where a draft model can pay, a copy of it is requantized there and used if it drafts faster, unless
        `prepare_draft=False`.

        Raises `InvalidRequest`, `ModelFileError`, `PairingError`, `ModelLoadError` or `BackendError`.
        """
        draft_tokens = check_draft_tokens(draft_tokens)
        target = checked_path("target", target)
        draft = None if draft is None else checked_path("draft", draft)
        folder = None if home is None else home_folder(home)
        llm = cls(load_engine(target, draft, engine_options(options), folder, notify), draft_tokens)
        llm._home, llm._asked_draft = folder, draft
        strict = llm.engine.options.strict
        if draft_tokens == "auto" or strict:
            try:
                if draft_tokens == "auto":
                    llm._calibrate(notify, improve=True)
                if strict:
                    llm.engine.warnings.append(strict_sentence(llm.engine, folder, notify))
            except BaseException:
                llm.close()
                raise
        record_use(Path(target), Path(draft) if draft and llm.engine.draft else None, home=folder)
        return llm

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
        settings = self.engine.describe()
        if isinstance(draft := settings["draft"], dict):
            asked = str(self._asked_draft)
            draft["prepared_from"] = None if draft["file"] == asked else asked
        return {**settings, "draft_tokens": self._draft_tokens, "drafting": self.drafting}

    @property
    def drafting(self) -> str:
        """Whether tokens are drafted by default, and why not."""
        return describe_drafting(self.engine, self._adaptive, self._draft_tokens)

    def chat(self, messages: Messages, **options: Unpack[AnswerOptions]) -> AnswerStream:
        """Answer a conversation: dicts with `role` and `content`, through the model's own chat template.

        options: those of `AnswerOptions`. Raises `InvalidRequest`, `TemplateError`, `PromptTooLong`.
        """
        with self._turns.using():
            ids = render_prompt(self.engine.target.model, self.engine.template, messages)
            return self._start(ids, options)

    def stream(self, prompt: str | Sequence[int], **options: Unpack[AnswerOptions]) -> AnswerStream:
        """Continue a raw prompt, text or token ids; arguments as for `chat`."""
        with self._turns.using():
            given = text_or_items(prompt)
            ids = text_prompt(self.engine.target.model, given) if isinstance(given, str) else given
            return self._start(ids, options)

    def generate(
        self, prompt: str | Sequence[int] | Messages, **options: Unpack[AnswerOptions]
    ) -> Completion:
        """The whole answer to a text, token ids or a conversation; arguments as for `stream` and `chat`."""
        given = text_or_items(prompt)
        is_chat = not isinstance(given, str) and any(isinstance(item, Mapping) for item in given)
        chunks = self.chat(given, **options) if is_chat else self.stream(given, **options)  # type: ignore[arg-type]
        completion = None
        for chunk in chunks:
            completion = chunk.completion
        assert completion is not None, "the last chunk carries the completion"
        return completion

    def cancel(self) -> None:
        """Stop every answer asked for until now, from any thread; each ends with finish reason `cancelled`."""
        self._turns.cancel()

    def forget(self) -> None:
        """Forget the tokens of earlier answers: the next one starts cold, as a measurement must."""
        with self._turns.turn(self._turns.ticket()):
            self.engine.forget()

    def close(self) -> None:
        """Stop what runs, from any thread, and free everything. Idempotent."""
        self._turns.close()
        self._free()

    def close_at_exit(self) -> None:
        """Like `close`, but what does not stop in time is left to the end of the process."""
        if self._turns.close(timeout=EXIT_SECONDS):
            self._free()

    def _free(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, ids: list[int], options: AnswerOptions) -> AnswerStream:
        request = make_request(self.engine, ids, self._draft_tokens, cast(dict[str, Any], options))
        ticket = self._turns.ticket()
        return AnswerStream(self._turns, ticket, self._answer(request, ticket))

    def _answer(self, request: Request, ticket: Ticket) -> Iterator[Chunk]:
        with self._turns.turn(ticket):
            yield from answer_chunks(self.engine, self._controller(request.draft_tokens), request, ticket)

    def _controller(self, draft_tokens: int | str) -> Controller:
        if isinstance(draft_tokens, int):
            return FixedLength(draft_tokens)
        return self._adaptive or self._calibrate(_ignore)

    def _calibrate(self, notify: Notify, *, improve: bool = False) -> Controller:
        """Measure what passes cost, unless nothing would be drafted anyway.

        improve: let a faster copy of the draft take its place.
        """
        engine = self.engine
        if engine.no_draft_reason:
            return FixedLength(0)
        costs = measured_costs(engine, self._home, notify=notify)
        if improve:
            better = improved_engine(engine, self._asked_draft, costs, self._home, notify)
            if better is not engine:
                self._engine = better
                self._turns = Turns(better.cancel)
                return self._calibrate(notify)
        self._adaptive = AdaptiveController(costs.target, costs.draft, max_width=engine.target.n_outputs)
        return self._adaptive
