"""The conversation at the terminal: questions go to the model, lines that begin with "/" are commands."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.cli.chat.commands import PLAIN_WORDS, command
from localspec.cli.chat.entry import unquoted
from localspec.cli.chat.figures import cut_off, figures
from localspec.cli.chat.files import file_names
from localspec.cli.chat.showing import Look, shown
from localspec.cli.interrupts import ends_deferred, interrupts_ignored
from localspec.cli.model_options import ModelOptions
from localspec.cli.terminal import checked_text, say
from localspec.errors import ContextFull, ConversationFileError, LocalspecError, PromptTooLong

if TYPE_CHECKING:
    from localspec.answers.request import Completion
    from localspec.answers.stream import AnswerStream, Start
    from localspec.cli.chat.kept import Entry, Kept
    from localspec.llm import LLM

LARGER = "-c/--ctx-size gives a larger context at the start."
GO_ON = "/full drop_oldest goes on without the oldest turns, "
MAKE_ROOM = f"/undo takes the last question and its answer back, /clear empties the conversation; {LARGER}"


class Chat:
    """One conversation with one engine: a client of `Conversation` like any application.

    look: how answers are shown. kept: where conversations are kept, if they are. lent: what another program is in that
    uses the terminal.
    """

    def __init__(
        self,
        llm: LLM,
        options: ModelOptions,
        system: str = "",
        *,
        when_full: str = "error",
        quiet: bool = False,
        look: Look | None = None,
        kept: Kept | None = None,
        lent: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.conversation = llm.conversation(system, when_full=when_full, **options.conversation())
        self.llm, self.options, self.quiet = llm, options, quiet
        self.look, self.kept, self.lent = look or Look(), kept, lent
        self.files: dict[Path, str] = {}
        self.last: Completion | None = None
        self.leaving = self.stopped = False
        self._announced = ""
        self._hints = {"", llm.hint}
        self._other_models = contextlib.ExitStack()

    def run(self, read: Callable[[], str]) -> None:
        """Read and answer until /quit or the end of input (EOFError).

        Ctrl-C stops an answer and never the conversation, however often it comes: only `read` may raise
        KeyboardInterrupt.
        """
        with interrupts_ignored(), self._other_models:
            while not self.leaving:
                try:
                    line = read()
                except EOFError:
                    return
                try:
                    self.handle(line)
                except LocalspecError as error:
                    say(f"error: {error.message}\n{self._remedy(error)}".rstrip())

    def handle(self, line: str) -> None:
        """Handle one entry, a command or a question.

        Raises `LocalspecError` for a question that got no answer; its turn is then dropped.
        """
        self.stopped, entry = False, line.strip()
        if not entry:
            return
        if (word := PLAIN_WORDS.get(entry.lower())) is not None:
            entry = f"/{word}"
        if (text := unquoted(entry)) is not None:
            self.ask(text)
        elif entry.startswith("/") and not entry.startswith("//"):
            command(self, entry)
        else:
            self.ask(entry[1:] if entry.startswith("//") else line)

    def ask(self, text: str) -> None:
        """Ask, with the files that were read behind the question. Raises `LocalspecError`."""
        self.answer_with_files(checked_text("question", text), self.conversation.ask)

    def answer_with_files(self, question: str, ask: Callable[[str], AnswerStream]) -> None:
        """As `answer`, with the files that were read behind the question. They stay where it got no answer."""
        texts = (
            f"{name}:\n\n{text}" for name, text in zip(file_names(self), self.files.values(), strict=True)
        )
        whole = "\n\n".join([question, *texts])
        if self.answer(lambda: ask(whole)):
            self.files.clear()
        elif self.files:
            say(f"Still behind the next question: {', '.join(file_names(self))}.", dim=True)

    def answer(self, start: Start) -> bool:
        """Show the answer, keep the conversation, say what is to say. Returns whether there is an answer.

        SIGTERM and a hangup end it and then the chat.
        """
        with ends_deferred():
            try:
                completion = self.last = shown(self.llm, self.look, lambda: self._begun(start()))
            finally:
                if self.kept is not None:
                    self.kept.keep(self.conversation)
        self.stopped = completion.finish_reason == "cancelled"
        if self.stopped and not completion.ids:
            say("Stopped before the first word: nothing was kept.")
            return False
        self._report(completion)
        return True

    def use(self, llm: LLM, options: ModelOptions) -> None:
        """Go on with another model, which is closed at the end. Raises `LocalspecError` where it cannot take over."""
        now = self.conversation
        if now.messages:
            llm.render(
                now.messages, ending="nothing"
            )  # what its template refuses is said before it takes over
        conversation = now.from_messages(llm, now.messages, when_full=now.when_full, **now.defaults)
        conversation.system = now.system
        self._other_models.callback(llm.close)
        self.llm.close()
        self.llm, self.options, self.conversation = llm, options, conversation
        self._hints.add(llm.hint)
        if self.kept is not None:
            self.kept.model = options.named()

    def go_on(self, entry: Entry) -> None:
        """Take up a conversation that was kept; it has its own system prompt. Raises `ConversationFileError`."""
        from localspec.answers.conversation import Conversation

        now = self.conversation
        try:
            talk = Conversation.load(self.llm, entry.path, when_full=now.when_full, **now.defaults)
        except ConversationFileError as error:
            if entry.model and entry.model != self.options.named() and entry.path.is_file():
                error.command = f"It was held with {' + '.join(entry.model.values())}: go on with that model."
            raise
        self.conversation = talk
        if self.kept is not None:
            self.kept.begin_anew(entry if entry.by_itself else None)

    @property
    def max_tokens(self) -> int | None:
        """The longest answer, if there is one."""
        params = self.conversation.defaults["params"]
        return params.max_tokens  # type: ignore[no-any-return]

    def _report(self, completion: Completion) -> None:
        if notice := completion.notice.removeprefix(self._announced).strip():
            drops = self.conversation.when_full == "drop_oldest"
            say(f"{notice}\n{'The next question drops the oldest turns.' if drops else GO_ON + MAKE_ROOM}")
        if not self.quiet:
            say(figures(completion, self.max_tokens), dim=True)
            if completion.hint not in self._hints:
                self._hints.add(completion.hint)
                say(completion.hint, dim=True)
        elif cut := cut_off(completion, self.max_tokens):
            say(cut, dim=True)

    def _remedy(self, error: LocalspecError) -> str:
        if not isinstance(error, PromptTooLong | ContextFull):
            return error.command
        drops = self.conversation.when_full == "drop_oldest"
        if isinstance(error, PromptTooLong) and (drops or not self.conversation.turns):
            return f"Shorten the question; {LARGER}"
        return MAKE_ROOM if drops else GO_ON + MAKE_ROOM

    def _begun(self, stream: AnswerStream) -> AnswerStream:
        """The question was taken. Say what was dropped before the rest is read again, which takes its time."""
        self._announced = stream.notice
        if stream.notice:
            say(stream.notice)
        return stream
