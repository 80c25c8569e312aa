"""The line editor of the conversation: several lines, history across runs, paste."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys

from localspec.cli.keyboard import Keyboard
from localspec.cli.terminal import say

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyPressEvent


def history_path() -> Path:
    """The history file: in LOCALSPEC_HOME where it is set, else in the user's state folder. Raises `StoreError`."""
    from platformdirs import user_state_path

    from localspec.system.home import home_folder

    given = os.environ.get("LOCALSPEC_HOME")
    home = home_folder(given) if given else user_state_path("localspec", appauthor=False)
    return home / "chat-history"


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


def key_bindings() -> KeyBindings:
    """Enter sends, Esc-Enter or Alt-Enter breaks the line, Ctrl-C empties the entry.

    It never leaves: the one that was to stop an answer may come when that has just ended, and the conversation would
    be lost. As a key and, for the moment before keys are read, as a signal.
    """
    bindings = KeyBindings()

    @bindings.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-c")
    @bindings.add(Keys.SIGINT)
    def _interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            run_in_terminal(_say_how_to_leave)

    return bindings


def _say_how_to_leave() -> None:
    say("/exit or Ctrl-D leaves.", dim=True)


def prompt_reader(
    keyboard: Keyboard, interrupts: Sequence[int] = (), *, keep: bool = True
) -> Callable[[], str]:
    """A function that reads one entry; EOFError on Ctrl-D in an empty one.

    What was typed before stands in the line, unsent. interrupts: each Ctrl-C that came since the conversation is
    there; one before the first entry is answered as one in it.
    keep: read entries of earlier conversations, and keep these for later ones.
    """
    session: PromptSession[str] = PromptSession(
        "> ",
        multiline=True,
        prompt_continuation="  ",
        key_bindings=key_bindings(),
        history=History(history_path()) if keep else InMemoryHistory(),
    )
    entries = 0

    def answer_early_interrupts() -> None:
        if interrupts and not entries:
            run_in_terminal(_say_how_to_leave)

    def read() -> str:
        nonlocal entries
        try:
            return session.prompt(default=keyboard.typed(), pre_run=answer_early_interrupts)
        finally:
            entries += 1

    return read
