"""ModelHolder: the loaded model and its conversations. All of it runs in the worker's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from localspec import (
    LLM,
    AnswerOptions,
    Chunk,
    Conversation,
    LoadCancelled,
    LoadOptions,
    LocalspecError,
    Progress,
)
from localspec import pull as pull_model
from localspec.desktop.choices import choices
from localspec.desktop.events import Answered, Closed, Event, Listed, Loaded, Piece, Progressed
from localspec.desktop.shelf import Message, Shelf
from localspec.desktop.worker import Job
from localspec.errors import ConversationFileError, EngineClosed, NotDownloaded
from localspec.store.store import Store


class ModelHolder:
    """home: localspec's folder. tell: takes what the window should know. options: of every load."""

    def __init__(self, home: Path, tell: Callable[[Event], None], options: LoadOptions | None = None) -> None:
        self._home, self._tell, self._options = home, tell, options or LoadOptions()
        self._shelf = Shelf(home)
        self._llm: LLM | None = None
        self._open: dict[str, Conversation] = {}
        self._answered = ""
        """The conversation whose state the models hold."""

    def list_models(self, n_ctx: int) -> None:
        """Tell which models can be chosen."""
        self._tell(Listed(choices(Store(self._home), n_ctx)))

    def load(self, job: Job, model: str, n_ctx: int, *, download: bool) -> None:
        """Load a pair or file in the place of the model that is loaded. download: fetch it where it is not here."""
        self._leave()
        try:
            llm = self._loaded(job, model, n_ctx)
        except NotDownloaded:
            if not download:
                raise
            self._pull(job, model)
            llm = self._loaded(job, model, n_ctx)
        self._llm = llm
        self._tell(Loaded(job, llm.drafting, llm.warnings))

    def answer(
        self, job: Job, key: str, earlier: list[Message], question: str, system: str, options: AnswerOptions
    ) -> None:
        """Answer the question behind the messages `earlier`. What was behind them until now goes, once there is an
        answer.
        """
        if self._llm is None:
            raise EngineClosed("No model is loaded.", "Choose one.")
        conversation = self._conversation(self._llm, key, earlier)
        conversation.system, self._answered = system, key
        stream = conversation.ask(question, **options)
        job.ends_by(stream.cancel)
        owed: list[bool] = []
        for chunk in stream:
            marks = tuple(_marks(self._llm, chunk, owed))
            self._tell(Piece(chunk.text, marks, chunk.stats))
        assert chunk.completion is not None, "the last chunk has the completion"
        messages = None
        if len(conversation.turns) > len(earlier) // 2:  # else it was cancelled before it said anything
            messages = _without_system(conversation)
        try:
            if messages is not None:
                self._shelf.save(key, messages)
        finally:  # a disk that is full takes no answer away that was given
            self._tell(Answered(chunk.completion, messages))

    def forget(self, key: str) -> None:
        """Remove a conversation."""
        self._open.pop(key, None)
        self._shelf.remove(key)

    def close(self) -> None:
        """Save, free everything and say so."""
        try:
            self._leave()
        finally:
            self._tell(Closed())

    def _conversation(self, llm: LLM, key: str, earlier: list[Message]) -> Conversation:
        found = self._open.get(key) or self._saved(llm, key)
        while found and len(found.turns) > len(earlier) // 2:
            found.undo()
        if found is None or _without_system(found) != earlier:
            found = Conversation.from_messages(llm, earlier)
        found.when_full = "drop_oldest"
        self._open[key] = found
        return found

    def _saved(self, llm: LLM, key: str) -> Conversation | None:
        with suppress(ConversationFileError):  # there is none, or it is another model's
            return Conversation.load(llm, self._shelf.state_of(key))
        return None

    def _loaded(self, job: Job, model: str, n_ctx: int) -> LLM:
        options = self._options.copy()
        options.update({"n_ctx": n_ctx, "home": self._home, "on_progress": self._progressed})
        loading = LLM.load_in_background(model, **options)
        job.ends_by(loading.cancel)
        return loading.result()

    def _pull(self, job: Job, model: str) -> None:
        def report(progress: Progress) -> None:
            if job.cancelled:
                raise LoadCancelled("The download was stopped.", "It goes on from here the next time.")
            self._progressed(progress)

        job.ends_by(lambda: None)
        pull_model(model, on_progress=report, home=self._home)

    def _progressed(self, progress: Progress) -> None:
        self._tell(Progressed(progress.sentence, progress.fraction))

    def _leave(self) -> None:
        """Save the state of the last conversation, and free the model."""
        if self._llm is None:
            return
        last = self._open.get(self._answered)
        if last is not None and last.turns:
            with suppress(LocalspecError):  # its messages are saved anyway: it is then read again
                last.save(self._shelf.state_of(self._answered))
                self._shelf.keep_state_of(self._answered)
        self._open.clear()
        self._llm.close()
        self._llm = None


def _without_system(conversation: Conversation) -> list[Message]:
    return [message for message in conversation.messages if message["role"] != "system"]


def _marks(llm: LLM, chunk: Chunk, owed: list[bool]) -> Iterator[bool]:
    """For each character of the chunk, whether it was drafted. owed: the same for bytes whose text comes later."""
    for token, drafted in zip(chunk.tokens, chunk.drafted, strict=True):
        owed += [drafted] * len(llm.token_bytes([token]))
    for character in chunk.text:
        size = len(character.encode("utf-8", "replace"))
        yield bool(owed) and owed[0]
        del owed[:size]
