"""The conversation at the terminal: questions go to the model, lines that begin with "/" are commands."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localspec.cli.answer import figures, interrupts_ignored, write_out
from localspec.cli.model_options import ModelOptions
from localspec.cli.options import DRAFT_TOKENS
from localspec.cli.terminal import busy, checked_text, say, write_answer
from localspec.errors import ContextFull, LocalspecError, PromptTooLong

if TYPE_CHECKING:
    from localspec.answers.request import Completion
    from localspec.answers.stream import Start
    from localspec.llm import LLM

COMMANDS = {
    "help": ("", "list the commands"),
    "clear": ("", "forget the conversation, keep the system prompt"),
    "regen": ("", "answer the last question again"),
    "undo": ("", "take the last question and its answer back"),
    "system": ("TEXT", "set the system prompt; without TEXT remove it"),
    "draft": ("auto|off|N", "tokens drafted per round, from the next answer on"),
    "save": ("PATH", "write the conversation to a file"),
    "load": ("PATH", "go on with a conversation from a file"),
    "stats": ("", "figures of the last answer"),
    "exit": ("", "leave (so does Ctrl-D)"),
}
KEYS = (
    "//text sends /text. Enter sends, Esc-Enter or Alt-Enter makes a new line. "
    "Ctrl-C stops an answer and keeps what is there; on an empty line it leaves."
)


MAKE_ROOM = (
    "/undo takes the last question and its answer back, /clear empties the conversation; "
    "-c/--ctx-size gives a larger context at the start."
)


class Chat:
    """One conversation with one engine: a client of `Conversation` like any application."""

    def __init__(self, llm: LLM, options: ModelOptions, system: str = "", *, quiet: bool = False) -> None:
        self.conversation = llm.conversation(system, **options.conversation())
        self._llm = llm
        self._quiet = quiet
        self._last: Completion | None = None
        self._leaving = False

    def run(self, read: Callable[[], str]) -> None:
        """Read and answer until /exit or the end of input (EOFError).

        Ctrl-C stops an answer and never the conversation, however often it comes: only `read` may raise
        KeyboardInterrupt.
        """
        with interrupts_ignored():
            while not self._leaving:
                try:
                    line = read()
                except EOFError:
                    return
                try:
                    self.handle(line)
                except LocalspecError as error:
                    full = isinstance(error, PromptTooLong | ContextFull)
                    say(f"error: {error.message}\n{MAKE_ROOM if full else error.command}".rstrip())

    def handle(self, line: str) -> None:
        """Handle one entry, a command or a question.

        Raises `LocalspecError` for a question that got no answer; its turn is then dropped.
        """
        if not line.strip():
            return
        if line.startswith("/") and not line.startswith("//"):
            self._command(line)
        else:
            question = checked_text("question", line.removeprefix("/") if line.startswith("//") else line)
            self._answer(lambda: self.conversation.ask(question))

    def _command(self, line: str) -> None:
        name, _, argument = line[1:].partition(" ")
        name, argument = name.strip(), argument.strip()
        if name not in COMMANDS:
            say(f"There is no command /{name}: /help lists them, and //{name} sends the text to the model.")
        elif argument and not COMMANDS[name][0]:
            say(f"/{name} takes no text.")
        else:
            getattr(self, f"_do_{name}")(*([argument] if COMMANDS[name][0] else []))

    def _answer(self, start: Start) -> None:
        completion = self._last = self._stream(start)
        if completion.finish_reason == "cancelled" and not completion.ids:
            say("Stopped before the first word: nothing was kept.")
            return
        if completion.notice:
            say(f"{completion.notice}\n{MAKE_ROOM}")
        if not self._quiet:
            stopped = "stopped, " if completion.finish_reason == "cancelled" else ""
            say(stopped + figures(completion), dim=True)

    def _stream(self, start: Start) -> Completion:
        """Print the answer as it comes, with a spinner until the first word."""
        with contextlib.ExitStack() as waiting:
            waiting.enter_context(busy("reading"))

            def write(text: str) -> None:
                waiting.close()
                write_answer(text)

            completion = write_out(start, write, patient=True)
        if completion.text and not completion.text.endswith("\n"):
            write_answer("\n")
        return completion

    def _do_help(self) -> None:
        for name, (argument, what) in COMMANDS.items():
            say(f"  {f'/{name} {argument}'.strip():<20} {what}")
        say(f"  {KEYS}")

    def _do_clear(self) -> None:
        self.conversation.clear()
        say("The conversation is empty.", dim=True)

    def _do_regen(self) -> None:
        if not self.conversation.turns:
            say("There is no answer to regenerate.")
            return
        self._answer(self.conversation.regenerate)

    def _do_undo(self) -> None:
        turn = self.conversation.undo()
        if turn is None:
            say("There is nothing to take back.")
        else:
            say(f"Took back: {_shortened(turn.question)}", dim=True)

    def _do_system(self, text: str) -> None:
        previous = self.conversation.system
        self.conversation.system = checked_text("system prompt", text) if text else ""
        if text:
            say("The system prompt is set.", dim=True)
        else:
            say(f"Removed the system prompt: {previous}" if previous else "There is no system prompt.")

    def _do_draft(self, text: str) -> None:
        try:
            draft_tokens = DRAFT_TOKENS.convert(text, None, None)
        except click.BadParameter:
            say(f"/draft takes auto, off or a whole number, not {text!r}.")
        else:
            self.conversation.defaults["draft_tokens"] = draft_tokens
            with self._llm.using() as engine:
                most = engine.most_draft_tokens
            beyond = isinstance(draft_tokens, int) and draft_tokens > most
            used = f"{most}, for a pass checks no more" if beyond else draft_tokens
            say(f"Draft tokens from the next answer on: {used}.", dim=True)

    def _do_save(self, text: str) -> None:
        from localspec.answers.saved import is_saved

        path, turns = _path(text), len(self.conversation.turns)
        if not text:
            say("/save takes the path of a file.")
        elif not turns:
            say("There is nothing to save.")
        elif os.path.lexists(path) and not is_saved(path):
            say(f"{path} is there and is no saved conversation: nothing was written. Give another name.")
        else:
            self.conversation.save(path)
            say(f"Saved {_turns(turns)} to {path}.", dim=True)

    def _do_load(self, text: str) -> None:
        from localspec.answers.conversation import Conversation

        if not text:
            say("/load takes the path of a file.")
            return
        path = _path(text)
        self.conversation = Conversation.load(self._llm, path, **self.conversation.defaults)
        say(f"Loaded {_turns(len(self.conversation.turns))}. {self.conversation.restored}".strip(), dim=True)

    def _do_stats(self) -> None:
        if self._last is None:
            say("There is no answer yet.")
            return
        for name, value in self._last.stats.to_dict().items():
            say(f"  {name.replace('_', ' '):<24} {_figure(value)}")
        say(f"  {'seed':<24} {'-' if self._last.seed is None else self._last.seed}")
        say(f"  {'drafting':<24} {self._last.drafting}")

    def _do_exit(self) -> None:
        self._leaving = True


def _shortened(text: str, width: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _path(text: str) -> Path:
    """As a shell would take it; `~` of nobody is a name like any other."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - that of pathlib raises for it


def _turns(count: int) -> str:
    return "1 turn" if count == 1 else f"{count} turns"


def _figure(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
