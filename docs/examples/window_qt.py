"""A chat window in Qt. `python window_qt.py [NAME | TARGET.gguf [DRAFT.gguf]]`"""

import queue
import sys
import threading

from PySide6.QtCore import QTimer
from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import (
    QApplication,
    QLabel,
    QLineEdit,
    QPlainTextEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from localspec import LLM, LocalspecError


def answer(talk, question, stopped, events):
    """In a thread of its own, which knows the queue and not the window: that may be gone when the thread ends."""
    try:
        stream = talk.ask(question)
        if stopped.is_set():
            stream.cancel()
        for chunk in stream:
            events.put(("text", chunk.text))
        events.put(("end", f"{chunk.completion.stats.tokens_per_second:.1f} tokens/s"))
    except LocalspecError as error:
        events.put(("end", str(error)))


class Window(QWidget):
    def __init__(self, *models):
        super().__init__(windowTitle="localspec")
        self.text, self.entry = QPlainTextEdit(readOnly=True), QLineEdit()
        self.button, self.status = QPushButton("Stop"), QLabel("loading", wordWrap=True)
        layout = QVBoxLayout(self)
        for part in (self.text, self.entry, self.button, self.status):
            layout.addWidget(part)
        self.entry.returnPressed.connect(self.ask)
        self.button.clicked.connect(self.stop)
        self.llm, self.busy, self.stopped = None, True, threading.Event()
        self.events = events = queue.SimpleQueue()
        self.loading = LLM.load_in_background(*models, on_progress=lambda one: events.put(("progress", one)))
        self.loading.when_done(lambda: events.put(("loaded", None)))
        self.timer = QTimer(self, interval=30)
        self.timer.timeout.connect(self.drain)
        self.timer.start()

    def drain(self):
        for _ in range(self.events.qsize()):
            kind, value = self.events.get()
            getattr(self, f"on_{kind}")(value)

    def on_progress(self, progress):
        self.status.setText(f"{progress.sentence}: {progress.fraction:.0%}")

    def on_loaded(self, _):
        try:
            self.llm = self.loading.result()
        except LocalspecError as error:
            self.status.setText(str(error))
            return
        self.talk = self.llm.conversation()
        self.on_end("ready")

    def on_text(self, text):
        self.text.moveCursor(QTextCursor.MoveOperation.End)
        self.text.insertPlainText(text)
        self.text.ensureCursorVisible()

    def on_end(self, status):
        self.busy = False
        self.status.setText(status)
        self.entry.setFocus()

    def ask(self):
        question = self.entry.text()
        if self.busy or not question.strip():
            return
        self.entry.clear()
        self.on_text(f"\n\n> {question}\n")
        self.status.setText("answering")
        self.busy, self.stopped = True, threading.Event()
        work = (self.talk, question, self.stopped, self.events)
        threading.Thread(target=answer, args=work, daemon=True).start()

    def stop(self):
        self.stopped.set()
        if self.llm:
            self.llm.cancel()

    def closeEvent(self, event):
        self.timer.stop()
        self.loading.cancel()
        if self.llm:
            self.llm.close(wait=False)
        event.accept()


if __name__ == "__main__":
    app = QApplication(sys.argv[:1])
    window = Window(*sys.argv[1:] or ["qwen2.5-coder-1.5b"])
    window.resize(640, 480)
    window.show()
    sys.exit(app.exec())
