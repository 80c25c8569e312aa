"""App: Qt's application with one window, from its start to the end of all that runs."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from PySide6.QtWidgets import QApplication

from localspec.desktop.window import Window
from localspec.system.home import default_home


def run(model: str = "") -> int:
    """Show the window until it is closed; the exit code. model: a pair or file to begin with."""
    app = QApplication([sys.argv[0]])
    app.setApplicationName("localspec")
    app.setQuitOnLastWindowClosed(False)  # the window says when everything is saved
    file = Path(model).expanduser()
    window = Window(default_home(), str(file.absolute()) if model and file.is_file() else model)
    window.gone.connect(app.quit)
    for name in (signal.SIGINT, signal.SIGTERM):  # Python gets to them at the window's next tick
        signal.signal(name, lambda *_: window.close())
    window.show()
    return app.exec()
