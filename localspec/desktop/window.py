"""Window: its models, settings and end; what the worker tells is shown here, many times a second."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

from PySide6.QtCore import QEvent, Qt, QTimer, Signal
from PySide6.QtGui import QCloseEvent, QKeySequence, QResizeEvent, QShortcut
from PySide6.QtWidgets import QMainWindow

from localspec import LoadCancelled, LoadOptions, LocalspecError
from localspec.desktop.chat import Chat
from localspec.desktop.events import Answered, Closed, Event, Failed, Listed, Loaded, Piece, Progressed
from localspec.desktop.holder import ModelHolder
from localspec.desktop.layout import Layout
from localspec.desktop.picker import Picker
from localspec.desktop.preferences import Preferences
from localspec.desktop.settings import read_settings
from localspec.desktop.shelf import Shelf
from localspec.desktop.worker import Job, Worker
from localspec.errors import MemoryShort, NotDownloaded, PromptTooLong

TICK_MS = 30
MOST_EVENTS = 100
"""Taken in one tick."""
CLOSING_MS = 10_000
"""How long a window that was closed waits for what still runs."""
NARROW = 720
"""Pixels below which the conversations and some words are hidden."""

_REMEDIES = {
    NotDownloaded: "Choose it once more to download it.",
    MemoryShort: "Choose a smaller model or, in the settings, a smaller context; or close other programs.",
    PromptTooLong: "Shorten it, or choose a larger context in the settings.",
}
"""In the words of the window, where an application is told something else."""


class Window(QMainWindow):
    """home: localspec's folder. model: to be loaded in the place of the last one. options: of every load.

    gone: the window was closed, and everything is saved and freed.
    """

    gone = Signal()

    def __init__(self, home: Path, model: str = "", options: LoadOptions | None = None) -> None:
        super().__init__()
        self.setWindowTitle("localspec")
        self._memory = home / "desktop.json"
        self.settings = read_settings(self._memory)
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._holder = ModelHolder(home, self._events.put, options)
        self._worker, self._lister = Worker(self._failed), Worker(self._failed)
        self.picker = Picker(self)
        self._loading: Job | None = None
        self._is_closing = self._is_narrow = False
        self.ui = Layout(self)
        self.chat = Chat(self.ui, self._holder, self._worker, self.settings, Shelf(home).all())
        self._connect()
        self.resize(self.settings.width, self.settings.height)
        self._timer = QTimer(self)
        self._timer.timeout.connect(self._tick)
        self._timer.start(TICK_MS)
        self.chat.show_state()
        if model or self.settings.model:
            self.load(model or self.settings.model)
        else:
            QTimer.singleShot(0, self.choose_model)

    def _connect(self) -> None:
        ui, settings = self.ui, self.settings
        ui.menu.clicked.connect(lambda: ui.sidebar.setVisible(not ui.sidebar.isVisible()))
        ui.model.clicked.connect(self.choose_model)
        self.picker.chosen.connect(self.load)
        ui.drafting.setChecked(settings.drafting)
        ui.drafting.toggled.connect(self._switch_drafting)
        ui.colours.setChecked(settings.colours)
        ui.colours.toggled.connect(self._switch_colours)
        ui.transcript.colours = settings.colours
        ui.settings.clicked.connect(self.show_preferences)
        ui.cancel.clicked.connect(self.stop)
        ui.composer.stopped.connect(self.stop)
        ui.composer.refused.connect(ui.say)
        QShortcut(QKeySequence(Qt.Key.Key_Escape), self, self.stop)
        QShortcut(QKeySequence(QKeySequence.StandardKey.New), self, self.chat.begin)

    # Models and settings

    def choose_model(self) -> None:
        """Show the models that there are."""
        self.picker.open()
        n_ctx = self.settings.n_ctx
        self._lister.submit(lambda job: self._holder.list_models(n_ctx))

    def load(self, model: str, download: bool = False) -> None:
        """Load a model in the place of the one that is loaded. download: fetch it where it is not here."""
        self.stop()
        self.chat.has_model, self.settings.model = False, model
        n_ctx, holder = self.settings.n_ctx, self._holder
        self._loading = self._worker.submit(lambda job: holder.load(job, model, n_ctx, download=download))
        self._remember()
        self.ui.say("")
        self.ui.model.setText(Path(model).name.replace("&", "&&"))  # one alone would mark a key
        self._show_progress(Progressed("loading", 0.0))
        self.chat.show_state()

    def stop(self) -> None:
        """End the answer and the load that run."""
        self.chat.stop()
        if self._loading is not None:
            self._loading.cancel()

    def show_preferences(self) -> None:
        """Show the dialog of the settings."""
        dialog = Preferences(self, self.settings)
        dialog.accepted.connect(lambda: self._take_preferences(dialog))
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def _take_preferences(self, dialog: Preferences) -> None:
        before = self.settings.n_ctx
        dialog.read(self.settings)
        self._remember()
        if self.settings.n_ctx != before and self.settings.model:
            self.load(self.settings.model)

    def _switch_drafting(self, on: bool) -> None:
        self.settings.drafting = on
        self._remember()

    def _switch_colours(self, on: bool) -> None:
        self.settings.colours = self.ui.transcript.colours = on
        self._remember()
        self.chat.redraw()

    def _remember(self) -> None:
        settings = replace(self.settings)
        self._lister.submit(lambda job: settings.save(self._memory))

    # What the worker tells

    def _failed(self, job: Job, error: Exception) -> None:
        self._events.put(Failed(job, error))

    def _tick(self) -> None:
        try:
            for _ in range(MOST_EVENTS):
                self._take(self._events.get_nowait())
        except Empty:
            pass
        self.ui.transcript.tick()

    def _take(self, event: Event) -> None:
        match event:
            case Progressed():
                self._show_progress(event)
            case Piece():
                self.chat.take_piece(event)
            case Answered():
                self.chat.take_end(event)
            case Loaded():
                self._take_model(event)
            case Listed():
                self.picker.show_choices(event.choices, self.settings.model)
            case Failed():
                self._take_failure(event)
            case Closed():
                self._end()
        if not isinstance(event, Piece | Progressed):
            self.chat.show_state()

    def _show_progress(self, event: Progressed) -> None:
        if self._loading is not None:
            self.ui.show_progress(True)
            self.ui.progress.setValue(int(1000 * event.fraction))
            self.ui.progress.setFormat(event.sentence)

    def _take_model(self, event: Loaded) -> None:
        if event.job is self._loading:
            self._loading, self.chat.has_model = None, True
            self.ui.show_progress(False)
            self.ui.meter.setText(f"Ready · drafting {event.drafting}")
            self.ui.say(" ".join(event.notes))

    def _take_failure(self, event: Failed) -> None:
        """Say what went wrong, and what can be done."""
        if event.job is self._loading:
            self._loading = None
            self.ui.show_progress(False)
        elif isinstance(event.error, LoadCancelled):
            return  # of a load that another one took the place of
        self.chat.take_failure(event.job)
        self.ui.say(_sentence(event.error))
        if isinstance(event.error, NotDownloaded):
            self.choose_model()

    # The window itself

    def closeEvent(self, event: QCloseEvent) -> None:
        """It vanishes at once. What runs is ended, and then everything is saved and freed."""
        event.accept()
        if self._is_closing:
            return
        self._is_closing = True
        self.stop()
        self.settings.width, self.settings.height = self.width(), self.height()
        self._remember()  # and once that is done:
        self._lister.submit(lambda job: self._worker.submit(lambda job: self._holder.close()))
        QTimer.singleShot(CLOSING_MS, self._end)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """A narrow window has no room for the conversations."""
        super().resizeEvent(event)
        if self._is_narrow != (event.size().width() < NARROW):
            self._is_narrow = not self._is_narrow
            self.ui.sidebar.setVisible(not self._is_narrow)

    def changeEvent(self, event: QEvent) -> None:
        """Light or dark: code has other colours."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange and hasattr(self, "chat"):
            QTimer.singleShot(0, self.chat.redraw)  # once all widgets have the new palette

    def _end(self) -> None:
        if self._timer.isActive():
            self._timer.stop()
            self.gone.emit()


def _sentence(error: Exception) -> str:
    if not isinstance(error, LocalspecError):
        return f"{type(error).__name__}: {error}. This was not expected."
    return f"{error.message} {_REMEDIES.get(type(error), error.remedy)}".strip()
