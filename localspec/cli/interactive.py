"""The conversation at the terminal: questions go to the model, lines that begin with "/" are commands."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from localspec.checks import check_when_full, user_path
from localspec.cli.answer import Repetition, write_out
from localspec.cli.figures import cut_off, explained, figures
from localspec.cli.interrupts import interrupts_ignored
from localspec.cli.model_options import ModelOptions
from localspec.cli.options import DRAFT_TOKENS, flags
from localspec.cli.terminal import busy, checked_text, say, write_answer
from localspec.errors import ContextFull, InvalidRequest, LocalspecError, PromptTooLong

if TYPE_CHECKING:
    from localspec.answers.request import Completion
    from localspec.answers.stream import AnswerStream, Start
    from localspec.llm import LLM

COMMANDS = {
    "help": ("", "list the commands"),
    "clear": ("", "forget the conversation, keep the system prompt"),
    "regen": ("", "answer the last question again"),
    "undo": ("", "take the last question and its answer back"),
    "system": ("TEXT", "set the system prompt; without TEXT remove it"),
    "draft": ("auto|off|N", "tokens drafted per round from now on; alone: how many"),
    "full": ("error|drop_oldest", "when the context is full; alone: what the model sees"),
    "save": ("PATH", "write the conversation to a file"),
    "load": ("PATH", "go on with a conversation from a file"),
    "stats": ("", "figures of the last answer, and what they mean"),
    "exit": ("", "leave (so do /bye and Ctrl-D)"),
}
ALIASES = {"bye": "exit", "quit": "exit", "q": "exit", "?": "help"}
MEANT = {
    "new": "clear", "reset": "clear", "forget": "clear", "retry": "regen", "again": "regen", "redo": "regen",
    "back": "undo", "draft_tokens": "draft", "when_full": "full", "context": "full", "info": "stats",
}  # fmt: skip
"""What other programs call it."""
PLAIN_WORDS = {"exit": "exit", "quit": "exit", "help": "help"}
"""Alone on a line they are commands: whoever types one means the program."""
KEYS = (
    "//text sends /text. Enter sends, Esc-Enter or Alt-Enter makes a new line. "
    "Ctrl-C stops an answer and keeps what is there, or empties the line. "
    "What is typed while an answer runs stands in the line after it, unsent."
)
REPEATS = "[The answer repeats itself: Ctrl-C ends one, and -n at the start bounds each.]"
"""Said once: at a line break of the answer that runs, or under it."""
LARGER = "-c/--ctx-size gives a larger context at the start."
GO_ON = "/full drop_oldest goes on without the oldest turns, "
MAKE_ROOM = f"/undo takes the last question and its answer back, /clear empties the conversation; {LARGER}"


class Chat:
    """One conversation with one engine: a client of `Conversation` like any application."""

    def __init__(
        self,
        llm: LLM,
        options: ModelOptions,
        system: str = "",
        *,
        when_full: str = "error",
        quiet: bool = False,
    ) -> None:
        self.conversation = llm.conversation(system, when_full=when_full, **options.conversation())
        self._llm = llm
        self._max_tokens = options.max_tokens
        self._quiet = quiet
        self._announced = ""
        self._last: Completion | None = None
        self._hints = {""}
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
                    say(f"error: {error.message}\n{self._remedy(error)}".rstrip())

    def handle(self, line: str) -> None:
        """Handle one entry, a command or a question.

        Raises `LocalspecError` for a question that got no answer; its turn is then dropped.
        """
        entry = line.strip()
        if not entry:
            return
        if (word := PLAIN_WORDS.get(entry.lower())) is not None:
            entry = f"/{word}"
        if entry.startswith("/") and not entry.startswith("//"):
            self._command(entry)
        else:
            question = checked_text("question", entry[1:] if entry.startswith("//") else line)
            self._answer(lambda: self.conversation.ask(question))

    def _remedy(self, error: LocalspecError) -> str:
        if not isinstance(error, PromptTooLong | ContextFull):
            return error.command
        drops = self.conversation.when_full == "drop_oldest"
        if isinstance(error, PromptTooLong) and (drops or not self.conversation.turns):
            return f"Shorten the question; {LARGER}"
        return MAKE_ROOM if drops else GO_ON + MAKE_ROOM

    def _command(self, line: str) -> None:
        name, argument = [*re.split(r"\s", line[1:], maxsplit=1), ""][:2]
        typed, argument = name.lower(), argument.strip()
        name = ALIASES.get(typed, typed)
        if name not in COMMANDS:
            say(f"There is no command /{typed}: {_hint(typed)}, and //{typed} sends the text to the model.")
        elif argument and not COMMANDS[name][0]:
            say(f"/{typed} takes no text.")
        else:
            getattr(self, f"_do_{name}")(*([argument] if COMMANDS[name][0] else []))

    def _answer(self, start: Start) -> None:
        completion = self._last = self._stream(lambda: self._begun(start()))
        if completion.finish_reason == "cancelled" and not completion.ids:
            say("Stopped before the first word: nothing was kept.")
            return
        if notice := completion.notice.removeprefix(self._announced).strip():
            drops = self.conversation.when_full == "drop_oldest"
            say(f"{notice}\n{'The next question drops the oldest turns.' if drops else GO_ON + MAKE_ROOM}")
        if not self._quiet:
            say(figures(completion, self._max_tokens), dim=True)
            if completion.hint not in self._hints:
                self._hints.add(completion.hint)
                say(completion.hint, dim=True)
        elif cut := cut_off(completion, self._max_tokens):
            say(cut, dim=True)

    def _begun(self, stream: AnswerStream) -> AnswerStream:
        """Say what was dropped before the rest is read again, which takes its time."""
        self._announced = stream.notice
        if stream.notice:
            say(stream.notice)
        return stream

    def _stream(self, start: Start) -> Completion:
        """Print the answer as it comes, with a spinner until the first word."""
        repetition, told = Repetition(), False
        with contextlib.ExitStack() as waiting:
            waiting.enter_context(busy("reading"))

            def write(text: str) -> None:
                nonlocal told
                waiting.close()
                write_answer(text)
                if repetition.found and not told and text.endswith("\n"):
                    say(REPEATS)
                    told = True

            completion = write_out(start, write, patient=True, heed=repetition.heed)
        if completion.text and not completion.text.endswith("\n"):
            write_answer("\n")
        if repetition.found and not told:
            say(REPEATS)
        return completion

    def _do_help(self) -> None:
        for name, (argument, what) in COMMANDS.items():
            say(f"  {f'/{name} {argument}'.strip():<23} {what}", hang=26)
        say(f"  {KEYS}", hang=2)

    def _do_clear(self) -> None:
        self.conversation.clear()
        say("The conversation is empty.", dim=True)

    def _do_regen(self) -> None:
        if not self.conversation.turns:
            say("There is no answer to regenerate.")
            return
        say(f"Again: {_shortened(self.conversation.turns[-1].question)}", dim=True)
        self._answer(self.conversation.regenerate)

    def _do_undo(self) -> None:
        turn = self.conversation.undo()
        if turn is None:
            say("There is nothing to take back.")
            return
        say(f"Took back: {_shortened(turn.question)}", dim=True)
        if turn.dropped != self.conversation.dropped:
            say(self._seen(), dim=True)

    def _do_full(self, text: str) -> None:
        try:
            self.conversation.when_full = check_when_full(text or self.conversation.when_full)
        except InvalidRequest:
            say(f"/full takes error or drop_oldest, not {text!r}.")
        else:
            say(f"When the context is full: {self.conversation.when_full}. {self._seen()}", dim=True)

    def _seen(self) -> str:
        first, last = self.conversation.dropped + 1, len(self.conversation.turns)
        if first == 1:
            return f"The model sees the whole conversation, {_turns(last)}."
        if first >= last:
            return f"The model sees {'the last' if first == last else 'none'} of {_turns(last)}."
        return f"The model sees the last {last - first + 1} of {_turns(last)}."

    def _do_system(self, text: str) -> None:
        previous = self.conversation.system
        self.conversation.system = checked_text("system prompt", text) if text else ""
        if text:
            say("The system prompt is set.", dim=True)
        else:
            say(f"Removed the system prompt: {previous}" if previous else "There is no system prompt.")

    def _do_draft(self, text: str) -> None:
        if not text:
            now = _drafted(self.conversation.defaults["draft_tokens"])
            say(f"Draft tokens: {now}. /draft auto, off or a whole number changes it.", dim=True)
            return
        try:
            draft_tokens = DRAFT_TOKENS.convert(text, None, None)
        except click.BadParameter:
            say(f"/draft takes auto, off or a whole number, not {text!r}.")
        else:
            self.conversation.defaults["draft_tokens"] = draft_tokens
            with self._llm.using() as engine:
                most = engine.most_draft_tokens
            beyond = isinstance(draft_tokens, int) and draft_tokens > most
            used = f"{most}, for a pass checks no more" if beyond else _drafted(draft_tokens)
            say(f"Draft tokens from the next answer on: {used}.", dim=True)

    def _do_save(self, text: str) -> None:
        from localspec.answers.saved import is_saved

        path, turns = user_path(text), len(self.conversation.turns)
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
        path = user_path(text)
        when_full = self.conversation.when_full
        self.conversation = Conversation.load(
            self._llm, path, when_full=when_full, **self.conversation.defaults
        )
        seen = f" {self._seen()}" if self.conversation.dropped else ""
        loaded = f"Loaded {_turns(len(self.conversation.turns))}.{seen}"
        say(f"{loaded} {self.conversation.restored}".strip(), dim=True)

    def _do_stats(self) -> None:
        if self._last is None:
            say("There is no answer yet.")
            return
        for line in explained(self._last):
            say(f"  {line}", hang=33)

    def _do_exit(self) -> None:
        self._leaving = True


def _hint(typed: str) -> str:
    """What may have been meant by a command that there is not; no full stop."""
    name = typed.replace("-", "_")
    option = flags().get(name) or {"set": "options", "model": "PAIR or -m/--target"}.get(name)
    if name not in MEANT and option is not None:
        return (
            f"models and sampling are chosen at the start, by {option} of `localspec chat`. /help lists all"
        )
    near = MEANT.get(name) or next(iter(difflib.get_close_matches(name, COMMANDS, n=1)), None)
    return "/help lists them" if near is None else f"did you mean /{near}? /help lists all"


def _drafted(draft_tokens: object) -> object:
    return "off" if draft_tokens == 0 else draft_tokens


def _shortened(text: str, width: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _turns(count: int) -> str:
    return "1 turn" if count == 1 else f"{count} turns"
