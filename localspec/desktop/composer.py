"""Composer: where a question is written, with files attached to it."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent, QTextCursor
from PySide6.QtWidgets import (
    QFileDialog,
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

LARGEST_FILE = 1_000_000
"""Bytes: far more than a context holds."""


class _Input(QPlainTextEdit):
    """Enter asks; with Shift it begins a new line."""

    entered = Signal()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if enter and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.entered.emit()
        else:
            super().keyPressEvent(event)


class Composer(QWidget):
    """asked, stopped: by key or button. refused: why a file cannot be attached."""

    asked, stopped, refused = Signal(), Signal(), Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.files: list[tuple[str, str]] = []
        self.input = _Input()
        self.input.setPlaceholderText("Ask something. Shift+Enter begins a new line.")
        self.input.setFixedHeight(76)
        self.input.entered.connect(self.asked)
        self.about = QLabel()
        self.about.setWordWrap(True)
        self.about.setTextFormat(Qt.TextFormat.PlainText)  # of names of files
        self.drop = QPushButton("Remove")
        self.drop.clicked.connect(self.clear_extras)
        self.attach = QPushButton("Attach…")
        self.attach.clicked.connect(self._choose)
        self.send = QPushButton("Send")
        self.send.clicked.connect(self.asked)
        self.stop = QPushButton("Stop")
        self.stop.clicked.connect(self.stopped)
        self._arrange()
        self.replaces: int | None = None
        self.clear_extras()

    def _arrange(self) -> None:
        above, right, below, whole = QHBoxLayout(), QVBoxLayout(), QHBoxLayout(), QVBoxLayout(self)
        above.addWidget(self.about, 1)
        above.addWidget(self.drop)
        for button in (self.attach, self.send, self.stop):
            right.addWidget(button)
        right.addStretch(1)
        below.addWidget(self.input, 1)
        below.addLayout(right)
        whole.setContentsMargins(0, 0, 0, 0)
        whole.addLayout(above)
        whole.addLayout(below)

    def show_state(self, *, busy: bool, ready: bool) -> None:
        """busy: an answer runs. ready: a question could be answered."""
        self.send.setVisible(not busy)
        self.send.setEnabled(ready)
        self.stop.setVisible(busy)

    def edit(self, index: int | None, text: str) -> None:
        """Write the question anew that is message `index`, or was none yet."""
        self.clear_extras()
        self.replaces = index
        self.input.setPlainText(text)
        self.input.moveCursor(QTextCursor.MoveOperation.End)
        self.input.setFocus()
        self._tell()

    def question(self) -> str:
        """What is asked, with the files behind it; "" where nothing was written."""
        text = self.input.toPlainText().strip()
        parts = [f"{name}:\n```\n{content.rstrip()}\n```" for name, content in self.files]
        return "\n\n".join([text, *parts]) if text else ""

    def attach_file(self, path: Path) -> None:
        """Attach a text file, or say why not."""
        try:
            if path.exists() and not path.is_file():  # a pipe would hold up the window
                self.refused.emit(f"{path.name} is no file.")
                return
            if path.stat().st_size > LARGEST_FILE:
                self.refused.emit(f"{path.name} is larger than {LARGEST_FILE:,} bytes. Attach a part of it.")
                return
            self.files.append((path.name, path.read_text(encoding="utf-8-sig")))
        except UnicodeDecodeError:
            self.refused.emit(f"{path.name} is no text in UTF-8. Convert it before.")
        except OSError as error:
            self.refused.emit(f"{path.name} cannot be read: {error.strerror}.")
        self._tell()

    def clear_extras(self) -> None:
        """Without files, and in the place of nothing."""
        self.files, self.replaces = [], None
        self._tell()

    def _choose(self) -> None:
        for name in QFileDialog.getOpenFileNames(self, "Attach text files")[0]:
            self.attach_file(Path(name))

    def _tell(self) -> None:
        editing = [] if self.replaces is None else ["In the place of an earlier question and what follows it"]
        names = [f"Attached: {', '.join(name for name, _ in self.files)}"] if self.files else []
        self.about.setText(" · ".join(editing + names))
        self.about.setVisible(bool(editing or names))
        self.drop.setVisible(bool(editing or names))
