"""An answer as Markdown while it comes: finished blocks are printed once, the last one is drawn anew as it grows."""

from __future__ import annotations

import os
import shutil
import sys
import time

from rich.cells import cell_len, set_cell_size

from localspec.cli.chat.markdown import Line, Renderer, finished, is_table
from localspec.cli.chat.pieces import Pieces
from localspec.cli.terminal import printable, styled, wrapped

INTERVAL = 0.1
"""Seconds between two drawings, at least."""
SHARE = 0.2
"""Of the time that may go into drawing: a long block is drawn less often."""


class Live:
    """A view of one answer. Below it stands a line on how it goes, which leaves with the answer.

    accepted: whether drafted text is painted.
    """

    def __init__(self, *, accepted: bool) -> None:
        self._renderer = Renderer(accepted=accepted)
        self._text = ""
        self._marks: list[bool] = []
        self._status = ""
        self._notes: list[str] = []
        self._drawn: list[int] = []  # columns of each line that can be drawn anew
        self._above = 0  # lines of the unfinished block that scrolled away, and are not drawn any more
        self._width = 0  # that it is broken for, as long as some of its lines are above
        self._begun = self._dirty = False
        self._due = 0.0

    def take(self, pieces: Pieces, status: str) -> None:
        """More text, and how it goes."""
        for text, mark in pieces:
            shown = printable(text).replace("\r", "")
            self._text += shown
            self._marks += [mark] * len(shown)
        self._status, self._dirty = status, True
        self.tick()

    def tick(self) -> None:
        """Draw, if it is time to."""
        began = time.monotonic()
        if self._dirty and began >= self._due:
            self._draw()
            spent = time.monotonic() - began
            self._due = began + max(INTERVAL, spent / SHARE)

    def note(self, sentence: str) -> None:
        """A sentence beside the answer, which stays."""
        self._notes.append(sentence)
        self._dirty = True

    def end(self) -> None:
        """All that is there, for good."""
        self._status, self._due = "", 0.0
        self._draw(whole=True)

    def _draw(self, *, whole: bool = False) -> None:
        columns, rows = shutil.get_terminal_size()
        kept = [line for block in self._finished(whole=whole) for line in self._leave(block, columns - 1)]
        for note in self._notes:
            kept += [Line(text, cell_len(text)) for text in wrapped(note, columns).split("\n")]
        tail = self._lines(self._text, columns - 1)[self._above :] if self._text.strip() else []
        room = max(rows - 3, 1)
        if len(tail) > room:
            if not is_table(self._text):
                self._width = self._width or columns - 1
                kept += tail[:-room]
                self._above += len(tail) - room
            tail = tail[-room:]
        self._notes, self._dirty = [], False
        self._print(kept, tail, columns, rows)

    def _finished(self, *, whole: bool) -> list[str]:
        if not whole:
            return finished(self._text)
        parts = finished(self._text)
        rest = self._text[sum(map(len, parts)) :]
        return [part for part in (*parts, rest) if part.strip()]

    def _leave(self, block: str, width: int) -> list[Line]:
        """Lines of a finished block that are not above yet; it is forgotten."""
        lines = self._lines(block, width)[self._above :]
        self._text, self._marks = self._text[len(block) :], self._marks[len(block) :]
        self._above = self._width = 0
        self._begun = True
        return lines

    def _lines(self, block: str, width: int) -> list[Line]:
        lines = self._renderer.lines(block, self._marks, self._width or width)
        return [Line("", 0), *lines] if self._begun and lines else lines

    def _print(self, kept: list[Line], tail: list[Line], columns: int, rows: int) -> None:
        """In one go, so that nothing flickers."""
        out = self._erased(columns, rows) + "".join(f"{line.text}\n" for line in kept)
        below = [line.text for line in tail]
        self._drawn = [line.cells for line in tail]
        if self._status:
            status = self._status
            if cell_len(status) > columns - 1:
                status = set_cell_size(status, columns - 1).rstrip()
            below.append(styled(status, dim=True))
            self._drawn.append(cell_len(status))
        sys.stdout.write(out + "\n".join(below))
        sys.stdout.flush()

    def _erased(self, columns: int, rows: int) -> str:
        """What takes back the lines that were drawn. Most terminals break them anew when their window is narrower."""
        if not self._drawn:
            return ""
        breaks = "XTERM_VERSION" not in os.environ
        count = sum(max(1, -(-cells // columns)) if breaks else 1 for cells in self._drawn)
        count = min(count, rows)
        return "\r" + (f"\x1b[{count - 1}A" if count > 1 else "") + "\x1b[J"
