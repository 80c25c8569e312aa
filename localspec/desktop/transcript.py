"""Transcript: the conversation as it is drawn. Only the last block of a running answer is drawn again and again."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from PySide6.QtCore import QUrl, Signal
from PySide6.QtGui import QColor, QDesktopServices, QPalette, QTextBlockFormat, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QTextBrowser, QWidget

from localspec.desktop.markdown import Markdown, first_block, plain_html, style_sheet
from localspec.desktop.shelf import Message

REDRAW_SECONDS = 0.1
BUDGET_SECONDS = 0.015
"""For drawing at each tick; one block, which is short, may exceed it."""
LONGEST_QUESTION = 4000
"""Characters of a question that are drawn: it may have files in it."""
MARK = QColor(60, 180, 90, 70)
"""Behind accepted drafted tokens."""


@dataclass
class _Part:
    """Something to be drawn: the head of a message, as HTML, or the source of an answer."""

    html: str = ""
    source: str = ""
    marks: list[bool] = field(default_factory=list)
    ended: bool = True


class Transcript(QTextBrowser):
    """acted: "edit", "copy" or "again", and the index of the message."""

    acted = Signal(str, int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setOpenLinks(False)
        self.document().setDocumentMargin(16)
        self.setPlaceholderText("Ask something below.")
        font = self.font()
        font.setPointSizeF(1.1 * font.pointSizeF())
        self.setFont(font)
        self.anchorClicked.connect(self._follow)
        self.colours = False
        self._parts: deque[_Part] = deque()
        self._settled = 0
        """Where in the document ends what is not drawn again."""
        self._changed, self._redrawn = False, 0.0
        self._empty()

    def show_messages(
        self, messages: list[Message], marks: dict[int, list[bool]], *, running: bool = False
    ) -> None:
        """Draw these in the place of what is there, in the ticks that follow.

        marks: of answers, by their index. running: there will be more of the last one.
        """
        self._empty()
        for index, message in enumerate(messages):
            self._add(index, message, marks.get(index, []))
        if running:
            self._parts[-1].ended = False

    def _add(self, index: int, message: Message, marks: list[bool]) -> None:
        text, own = message["content"], message["role"] == "user"
        actions = {"edit": "Edit", "copy": "Copy"} if own else {"copy": "Copy", "again": "Regenerate"}
        links = " · ".join(
            f'<a class="action" href="{action}:{index}">{name}</a>' for action, name in actions.items()
        )
        name = "You" if own else "Answer"
        self._parts.append(_Part(f'<p class="head"><b>{name}</b> &nbsp; {links}</p>'))
        if own:
            cut = text[:LONGEST_QUESTION]
            rest = f"\n… and {len(text) - len(cut)} more characters" if len(text) > len(cut) else ""
            self._parts.append(_Part(plain_html(cut + rest)))
        else:
            self._parts.append(_Part(source=text, marks=list(marks)))

    def feed(self, text: str, marks: tuple[bool, ...]) -> None:
        """More of the last message."""
        last = self._parts[-1]
        last.source += text
        last.marks += marks
        self._changed = True

    def end(self) -> None:
        """The last message is whole."""
        if self._parts:
            self._parts[-1].ended = True

    @property
    def drawn(self) -> bool:
        """Whether all there is was drawn."""
        return not self._parts

    def tick(self) -> None:
        """Draw some of what is to be drawn."""
        until = time.monotonic() + BUDGET_SECONDS
        while self._parts and time.monotonic() < until:
            if not self._draw(self._parts[0]):
                break

    def _draw(self, part: _Part) -> bool:
        """The next block of the part; whether there may be more to do."""
        if part.html:
            self._insert(part.html, "", [])
            self._parts.popleft()
            return True
        end, opening = first_block(part.source)
        if end or part.ended:
            end = end or len(part.source)
            block, part.source = part.source[:end], opening + part.source[end:]
            marks, part.marks = part.marks[:end], [False] * len(opening) + part.marks[end:]
            self._insert(self._markdown.html(block), block, marks)
            if part.ended and part.source == opening:
                self._parts.popleft()
            return True
        now = time.monotonic()
        if self._changed and now - self._redrawn >= REDRAW_SECONDS:
            self._changed, self._redrawn = False, now
            self._insert(self._markdown.html(part.source), part.source, part.marks, settled=False)
        return False

    def _insert(self, html: str, source: str, marks: list[bool], *, settled: bool = True) -> None:
        """Behind what is settled, in the place of what is not."""
        html = html or "<p></p>"  # of blanks
        bar = self.verticalScrollBar()
        follows = bar.value() >= bar.maximum() - 8
        cursor = QTextCursor(self.document())
        cursor.beginEditBlock()
        cursor.setPosition(self._settled)
        cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        if self._settled:
            cursor.insertBlock(QTextBlockFormat(), QTextCharFormat())
        start = cursor.position()
        if html.startswith("<table"):
            cursor.insertHtml(html)
        else:  # the first paragraph would lose its format to the block that is there
            cursor.insertHtml(f"<p>-</p>{html}")
            cursor.setPosition(start)
            cursor.setPosition(start + 2, QTextCursor.MoveMode.KeepAnchor)
            cursor.removeSelectedText()
            cursor.movePosition(QTextCursor.MoveOperation.End)
        if self.colours and any(marks):
            self._colour(start, cursor.position(), source, marks)
        if settled:
            self._settled = cursor.position()
        cursor.endEditBlock()
        if follows:
            bar.setValue(bar.maximum())

    def _colour(self, start: int, end: int, source: str, marks: list[bool]) -> None:
        """Mark drafted characters: those of the source are found one after the other in what is drawn of it."""
        cursor, form = QTextCursor(self.document()), QTextCharFormat()
        form.setBackground(MARK)
        cursor.setPosition(start)
        cursor.setPosition(end, QTextCursor.MoveMode.KeepAnchor)
        place, here, begun = start, 0, -1
        for character in [*cursor.selectedText(), ""]:
            found = source.find(character, here, here + 200) if character else -1
            drafted = found >= 0 and marks[found]
            here = found + 1 if found >= 0 else here
            if drafted and begun < 0:
                begun = place
            elif not drafted and begun >= 0:
                cursor.setPosition(begun)
                cursor.setPosition(place, QTextCursor.MoveMode.KeepAnchor)
                cursor.mergeCharFormat(form)
                begun = -1
            place += 2 if character > "\uffff" else 1  # Qt counts as UTF-16 does

    def _empty(self) -> None:
        self.clear()
        self._parts.clear()
        self._settled, self._changed, self._redrawn = 0, False, 0.0
        dark = self.palette().color(QPalette.ColorRole.Base).lightness() < 128
        self._markdown = Markdown(dark)
        self.document().setDefaultStyleSheet(style_sheet(dark))

    def _follow(self, url: QUrl) -> None:
        if url.scheme() in ("http", "https"):
            QDesktopServices.openUrl(url)
        else:
            self.acted.emit(url.scheme(), int(url.path()))
