"""Sidebar: the list of conversations."""

from __future__ import annotations

from html import escape

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QListWidget, QListWidgetItem, QPushButton, QVBoxLayout, QWidget

from localspec.desktop.shelf import Talk

_TALK = Qt.ItemDataRole.UserRole


class Sidebar(QWidget):
    """opened: a conversation that was clicked; begun: a new one is wanted; removed: one is not wanted any more."""

    opened, begun, removed = Signal(Talk), Signal(), Signal(Talk)

    def __init__(self) -> None:
        super().__init__()
        new = QPushButton("New conversation")
        new.clicked.connect(self.begun)
        self.list = QListWidget()
        self.list.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        self.list.setSpacing(2)
        self.list.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        delete = QAction("Delete", self.list)
        delete.setShortcut(QKeySequence.StandardKey.Delete)
        delete.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
        delete.triggered.connect(self._remove)
        self.list.addAction(delete)
        self.list.itemClicked.connect(lambda item: self.opened.emit(item.data(_TALK)))
        self.list.itemActivated.connect(lambda item: self.opened.emit(item.data(_TALK)))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(new)
        layout.addWidget(self.list, 1)

    def fill(self, talks: list[Talk]) -> None:
        """Show these, newest first."""
        self.list.clear()
        for talk in talks:
            item = QListWidgetItem(talk.title)
            item.setToolTip(f"<p>{escape(talk.title)}</p>")
            item.setData(_TALK, talk)
            self.list.addItem(item)

    def select(self, talk: Talk) -> None:
        """This one is shown; none is selected where it is new."""
        self.list.setCurrentRow(-1)
        for item in (self.list.item(row) for row in range(self.list.count())):
            if item.data(_TALK) is talk:
                self.list.setCurrentItem(item)

    def _remove(self) -> None:
        if (item := self.list.currentItem()) is not None:
            self.removed.emit(item.data(_TALK))
