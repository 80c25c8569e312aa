"""Layout: the widgets of the window and where they are."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QPalette
from PySide6.QtWidgets import (
    QCheckBox,
    QHBoxLayout,
    QLabel,
    QMainWindow,
    QProgressBar,
    QPushButton,
    QSplitter,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from localspec.desktop.composer import Composer
from localspec.desktop.sidebar import Sidebar
from localspec.desktop.transcript import Transcript


class Layout:
    """Above: the model and switches. Below them what is to be said; then the conversation, the input and the meter."""

    def __init__(self, window: QMainWindow) -> None:
        self.menu = QToolButton()
        self.menu.setText("☰")
        self.menu.setToolTip("Show or hide the conversations")
        self.model = QPushButton("Choose a model…")
        self.drafting = QCheckBox("Drafting")
        self.drafting.setToolTip(
            "A small draft proposes tokens that the model checks: faster, with the same output"
        )
        self.colours = QCheckBox("Mark drafted")
        self.colours.setToolTip("Marks what the draft proposed and the model accepted")
        self.settings = QPushButton("Settings…")
        self.progress, self.cancel = QProgressBar(), QPushButton("Cancel")
        self.progress.setRange(0, 1000)
        self.progress.setMinimumWidth(40)
        self.notice = QLabel()
        self.notice.setWordWrap(True)
        self.notice.setTextFormat(Qt.TextFormat.PlainText)
        self.notice.setFrameShape(QLabel.Shape.StyledPanel)
        self.notice.setMargin(6)
        self.notice.setAutoFillBackground(True)
        self.notice.setBackgroundRole(QPalette.ColorRole.Base)
        self.notice.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.meter = QLabel()
        self.meter.setWordWrap(True)
        self.meter.setTextFormat(Qt.TextFormat.PlainText)
        self.sidebar, self.transcript, self.composer = Sidebar(), Transcript(), Composer()
        window.setCentralWidget(self._arranged())
        self.notice.hide()
        self.show_progress(False)

    def say(self, sentence: str) -> None:
        """Tell the user; "" tells nothing any more."""
        self.notice.setText(sentence)
        self.notice.setVisible(bool(sentence))

    def show_progress(self, shown: bool) -> None:
        """Whether the bar with its button is there."""
        self.progress.setVisible(shown)
        self.cancel.setVisible(shown)

    def _arranged(self) -> QWidget:
        above, loading, below, column = QHBoxLayout(), QHBoxLayout(), QHBoxLayout(), QVBoxLayout()
        main = QWidget()
        above.addWidget(self.menu)
        above.addWidget(self.model)
        above.addStretch(1)
        above.addWidget(self.settings)
        below.addWidget(self.meter, 1)
        below.addWidget(self.drafting)
        below.addWidget(self.colours)
        loading.addWidget(self.progress, 1)
        loading.addWidget(self.cancel)
        column.addLayout(above)
        column.addLayout(loading)
        column.addWidget(self.notice)
        column.addWidget(self.transcript, 1)
        column.addWidget(self.composer)
        column.addLayout(below)
        column.setContentsMargins(6, 0, 0, 0)
        main.setLayout(column)
        splitter = QSplitter()
        splitter.setContentsMargins(8, 8, 8, 8)
        splitter.addWidget(self.sidebar)
        splitter.addWidget(main)
        splitter.setStretchFactor(1, 1)
        splitter.setSizes([220, 780])
        return splitter
