"""Streamed text in lines that are broken between words, whatever the width of the terminal is at that moment."""

from __future__ import annotations

from collections.abc import Callable

from localspec.cli.chat.pieces import Pieces

TAB = 8


class Lines:
    """Gives the text on with line breaks in it; a word waits until it is whole.

    Between wide characters (Chinese, Japanese, ...) a line may be broken too; a word that is longer than a line is
    broken where the line is full. Blanks at the start of a line stay, those at a break go.
    columns: of the terminal, asked for every word. painted: (on, off) around what was drafted.
    """

    def __init__(self, columns: Callable[[], int], painted: tuple[str, str] = ("", "")) -> None:
        from rich.cells import cell_len

        self._columns, self._painted, self._cells = columns, painted, cell_len
        self._column = 0
        self._gap = ""
        self._word: list[tuple[str, bool]] = []
        self._wide = self._on = False

    def push(self, pieces: Pieces) -> str:
        """What can be printed now."""
        return "".join(self._take(character, mark) for text, mark in pieces for character in text)

    def flush(self) -> str:
        """The word that waits, because nothing more comes."""
        word, self._word, self._wide = self._word, [], False
        if not word:
            return ""
        room, size = max(self._columns() - 1, 1), sum(self._cells(character) for character, _ in word)
        self._column %= room + 1  # a window that became narrower has broken the line itself
        out = ""
        if self._column and self._column + len(self._gap) + size > room:
            out, self._column = "\n", 0
        else:
            gap = self._gap if len(self._gap) < room else ""
            out, self._column = gap, self._column + len(gap)
        self._gap = ""
        return (
            out + "".join(self._put(character, mark, room) for character, mark in word) + self._paint(False)
        )

    def _take(self, character: str, mark: bool) -> str:
        if character == "\n":
            out = self.flush() + "\n"
            self._column, self._gap = 0, ""
            return out
        if character in " \t":
            out = self.flush()
            self._gap += (
                character if character == " " else " " * (TAB - (self._column + len(self._gap)) % TAB)
            )
            return out
        if character == "\r":
            return ""
        cells = self._cells(character)
        out = self.flush() if self._word and cells and (cells > 1 or self._wide) else ""
        self._wide = cells > 1 or (self._wide and not cells)
        self._word.append((character, mark))
        return out

    def _put(self, character: str, mark: bool, room: int) -> str:
        cells = self._cells(character)
        out = self._paint(mark)
        if self._column + cells > room and self._column:
            out, self._column = f"\n{out}", 0
        self._column += cells
        return out + character

    def _paint(self, mark: bool) -> str:
        if mark == self._on:
            return ""
        self._on = mark
        return self._painted[0 if mark else 1]
