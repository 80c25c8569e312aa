"""The line editor of the conversation: several lines, history across runs, paste, Tab, the user's own editor."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.shortcuts import CompleteStyle

from localspec.cli.chat.completion import ChatCompleter
from localspec.cli.chat.editor import edited
from localspec.cli.chat.entry import is_open
from localspec.cli.chat.kept import Kept, state_folder
from localspec.cli.chat.keyboard import Keyboard
from localspec.cli.terminal import is_terminal, say

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyPressEvent

PASTE_SECONDS = 0.02
"""What comes so soon behind Enter was pasted: nobody types so fast."""
IMPATIENT_SECONDS = 2.0
"""One more Ctrl-C that was to stop an answer may come behind its end: none does that comes so soon after another."""


def history_path() -> Path:
    """The history file. Raises `StoreError`."""
    return state_folder() / "chat-history"


class History(FileHistory):
    """A history file that only its owner can read, and whose trouble never ends the chat."""

    def __init__(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        super().__init__(str(path))

    def load_history_strings(self) -> list[str]:
        """The entries, newest first; none where the file cannot be read."""
        with contextlib.suppress(OSError):
            return list(super().load_history_strings())
        return []

    def store_string(self, string: str) -> None:
        """Append an entry; bytes that are no UTF-8 become "?"."""
        with contextlib.suppress(OSError):
            super().store_string(string.encode("utf-8", "replace").decode("utf-8"))


LEAVES = "Ctrl-C again or /quit ends."


class Leaving:
    """Whether Ctrl-C at an empty prompt leaves: the second one in a row does, and none that was to stop an answer."""

    def __init__(self) -> None:
        self._asked = False
        self._last = float("-inf")

    def prompted(self, *, stopped: bool) -> None:
        """A prompt is there. stopped: behind an answer that Ctrl-C stopped."""
        self._asked = False
        self._last = time.monotonic() if stopped else float("-inf")

    def withdrawn(self) -> None:
        """Something else was typed."""
        self._asked = False

    def pressed(self) -> str | None:
        """Ctrl-C: what to say; None: it leaves."""
        if self._asked:
            return None
        now = time.monotonic()
        if now - self._last < IMPATIENT_SECONDS:
            self._last = now
            return "The answer has ended; /quit or Ctrl-D ends the conversation."
        self._asked = True
        return LEAVES


def key_bindings(leaving: Leaving) -> KeyBindings:
    """Enter sends, Esc-Enter or Alt-Enter breaks the line, Ctrl-C empties the entry, Ctrl-X Ctrl-E opens the editor.

    Ctrl-C comes as a key and, for the moment before keys are read, as a signal.
    """
    bindings = KeyBindings()

    @bindings.add("enter")
    def _send(event: KeyPressEvent) -> None:
        if is_open(event.current_buffer.text) or _more_comes(event):
            event.current_buffer.insert_text("\n")
        else:
            event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-x", "c-e")
    async def _edit(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        text = await run_in_terminal(lambda: edited(buffer.text), in_executor=False)
        if text is not None:
            buffer.text = text
            buffer.cursor_position = len(text)

    @bindings.add("c-c")
    @bindings.add(Keys.SIGINT)
    def _interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
            leaving.withdrawn()
        elif (sentence := leaving.pressed()) is None:
            event.app.exit(exception=EOFError)
        else:
            run_in_terminal(lambda: say(sentence, dim=True))

    return bindings


def _more_comes(event: KeyPressEvent) -> bool:
    """Whether Enter is part of a paste that the terminal did not mark: more text came with it or comes at once."""
    waiting = event.app.key_processor.input_queue
    if any(press.key not in (Keys.CPRResponse, Keys.SIGINT, Keys.ControlC) for press in waiting):
        return True
    if sys.platform == "win32" or not is_terminal(sys.stdin):
        return False
    return bool(select.select([sys.stdin.fileno()], [], [], PASTE_SECONDS)[0])


def prompt_reader(
    keyboard: Keyboard,
    interrupts: Sequence[int] = (),
    *,
    keep: bool = True,
    kept: Kept | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Callable[[], str]:
    """A function that reads one entry; EOFError on Ctrl-D in an empty one, or Ctrl-C twice.

    What was typed before stands in the line, unsent. interrupts: each Ctrl-C that came since the conversation is
    there; one before the first entry is answered as one in it.
    keep: read entries of earlier conversations, and keep these for later ones. kept: conversations that Tab offers.
    stopped: whether the answer before this entry was stopped.
    """
    leaving = Leaving()
    session: PromptSession[str] = PromptSession(
        "> ",
        multiline=True,
        prompt_continuation="  ",
        key_bindings=key_bindings(leaving),
        history=History(history_path()) if keep else InMemoryHistory(),
        completer=ChatCompleter(kept),
        complete_while_typing=False,
        complete_style=CompleteStyle.READLINE_LIKE,
    )
    session.default_buffer.on_text_insert += lambda _buffer: leaving.withdrawn()
    entries = seen = 0

    def answer_early_interrupts() -> None:
        if interrupts and not entries:
            leaving.pressed()
            run_in_terminal(lambda: say(LEAVES, dim=True))

    def read() -> str:
        nonlocal entries, seen
        leaving.prompted(stopped=stopped() or (entries > 0 and len(interrupts) > seen))
        seen = len(interrupts)
        try:
            return session.prompt(default=keyboard.typed(), pre_run=answer_early_interrupts)
        finally:
            entries += 1

    return read
