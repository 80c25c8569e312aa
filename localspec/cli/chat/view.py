"""Where a running answer is shown: as it is (for programs), in whole words (for people), or as Markdown (`live.py`)."""

from __future__ import annotations

import os
import sys
from typing import Protocol

from localspec.cli.chat.lines import Lines
from localspec.cli.chat.pieces import Pieces
from localspec.cli.terminal import columns_of, is_terminal, may_style, say, wrapped, write_answer
from localspec.text.controls import printable


class View(Protocol):
    """Takes an answer in pieces. `tick` comes some ten times a second, and `end` in any case."""

    def take(self, pieces: Pieces, status: str) -> None: ...

    def tick(self) -> None: ...

    def note(self, sentence: str) -> None: ...

    def end(self) -> None: ...


class Raw:
    """Every piece at once, as it is: nothing is added."""

    def take(self, pieces: Pieces, status: str) -> None:
        """status: is not shown."""
        for text, _ in pieces:
            write_answer(text)

    def tick(self) -> None:
        """Nothing waits."""

    def note(self, sentence: str) -> None:
        """Beside the answer."""
        say(sentence)

    def end(self) -> None:
        """Nothing is left."""


class Worded(Raw):
    """For a terminal: lines are broken between words, and what was drafted can be painted."""

    def __init__(self, *, accepted: bool) -> None:
        self._last = "\n"
        self._lines = Lines(lambda: columns_of(sys.stdout) or 80, paint() if accepted else ("", ""))

    def take(self, pieces: Pieces, status: str) -> None:
        """status: is not shown."""
        _write(self._lines.push([(printable(text), mark) for text, mark in pieces]))
        self._last = pieces[-1][0][-1:] if pieces else self._last

    def end(self) -> None:
        """The last word, and the end of its line."""
        _write(self._lines.flush() + ("" if self._last == "\n" else "\n"))
        self._last = "\n"


def paint() -> tuple[str, str]:
    """What stands before and behind text that was drafted: green, or a line below it where no colour is wanted."""
    if may_style():
        return "\x1b[32m", "\x1b[39m"
    return ("", "") if os.environ.get("TERM") == "dumb" else ("\x1b[4m", "\x1b[24m")


def legend() -> str:
    """What the paint means, in it."""
    (on, off), name = paint(), "like this"
    said = f"{name}: drafted tokens that the target accepted; the rest is the target's own"
    return wrapped(said, columns_of(sys.stderr)).replace(name, f"{on}{name}{off}", 1)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def view(*, markdown: bool, accepted: bool) -> View:
    """What fits standard output. markdown, accepted: what is wanted of a terminal."""
    if not is_terminal(sys.stdout):
        return Raw()
    if markdown and can_redraw():
        from localspec.cli.chat.live import Live

        return Live(accepted=accepted)
    return Worded(accepted=accepted)


def can_redraw() -> bool:
    """Whether standard output is a terminal whose cursor can be moved."""
    if os.environ.get("TERM") == "dumb":
        return False
    from rich.console import Console

    return not Console(file=sys.stdout).legacy_windows
