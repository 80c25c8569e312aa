"""Picker: the dialog in which a model is chosen."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QFileDialog,
    QLabel,
    QListWidget,
    QListWidgetItem,
    QVBoxLayout,
    QWidget,
)

from localspec.desktop.choices import Choice


class Picker(QDialog):
    """chosen: the name of a pair or the path of a file, and whether it may be downloaded."""

    chosen = Signal(str, bool)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Choose a model")
        self.resize(640, 460)
        self.list = QListWidget()
        self.list.setWordWrap(True)
        self.list.setSpacing(3)
        self.list.itemActivated.connect(self._take)
        self.list.currentItemChanged.connect(self._name_action)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Cancel)
        self.load = buttons.addButton("Load", QDialogButtonBox.ButtonRole.AcceptRole)
        file = buttons.addButton("Open a GGUF file…", QDialogButtonBox.ButtonRole.ActionRole)
        self.load.clicked.connect(lambda: self._take(self.list.currentItem()))
        file.clicked.connect(self._open_file)
        buttons.rejected.connect(self.reject)
        layout = QVBoxLayout(self)
        self.hint = QLabel("Looking at the models and this machine's memory…")
        layout.addWidget(self.hint)
        layout.addWidget(self.list, 1)
        layout.addWidget(buttons)
        self._name_action()

    def show_choices(self, choices: list[Choice], current: str) -> None:
        """Fill the list; the current model is selected."""
        self.hint.hide()
        self.list.clear()
        for choice in choices:
            notes = " · ".join(filter(None, (choice.note, choice.obstacle)))
            item = QListWidgetItem(f"{choice.name} ({notes})\n{choice.summary}")
            item.setData(Qt.ItemDataRole.UserRole, choice)
            self.list.addItem(item)
            if choice.name == current or self.list.currentItem() is None:
                self.list.setCurrentItem(item)

    def _name_action(self) -> None:
        item = self.list.currentItem()
        self.load.setEnabled(item is not None)
        here = item is None or item.data(Qt.ItemDataRole.UserRole).on_disk
        self.load.setText("Load" if here else "Download and load")

    def _take(self, item: QListWidgetItem) -> None:
        self.accept()
        self.chosen.emit(item.data(Qt.ItemDataRole.UserRole).name, True)

    def _open_file(self) -> None:
        name, _ = QFileDialog.getOpenFileName(self, "Open a GGUF file", "", "Models (*.gguf)")
        if name:
            self.accept()
            self.chosen.emit(name, False)
