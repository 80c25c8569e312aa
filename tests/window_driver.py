"""Drives one of the windows of docs/examples/ as a user would, in a process of its own: `window_driver.py tk|qt
SCENARIO MODELS...`. What the test looks at is one line of JSON on standard output, printed when the window is gone.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import Any

from localspec import LLM
from localspec.engine.engine import Engine

EXAMPLES = Path(__file__).resolve().parents[1] / "docs" / "examples"
STEP_MS, LONGEST_MS = 20, 60_000
Steps = Generator[Callable[[], bool], None, None]
"""Conditions to wait for, with what a user does in between."""


class TkHands:
    """The user of the Tk window."""

    def __init__(self, example: ModuleType, models: list[str]) -> None:
        self.window: Any = example.Window(*models)

    def run(self, step: Callable[[], bool]) -> None:
        def again() -> None:
            if step():
                self.window.after(STEP_MS, again)

        self.window.after(STEP_MS, again)
        self.window.mainloop()

    def type(self, text: str) -> None:
        self.window.update()
        self.window.entry.focus_force()
        for letter in text:
            self.window.entry.event_generate("<KeyPress>", keysym="space" if letter == " " else letter)
        self.window.entry.event_generate("<KeyPress>", keysym="Return")

    def stop(self) -> None:
        self.window.button.invoke()

    def close(self) -> None:
        self.window.tk.eval(self.window.protocol("WM_DELETE_WINDOW"))

    def text(self) -> str:
        return str(self.window.text.get("1.0", "end"))

    def status(self) -> str:
        return str(self.window.status.get())


class QtHands:
    """The user of the Qt window."""

    def __init__(self, example: ModuleType, models: list[str]) -> None:
        from PySide6.QtWidgets import QApplication

        self.app = QApplication([])
        self.window: Any = example.Window(*models)
        self.window.show()

    def run(self, step: Callable[[], bool]) -> None:
        from PySide6.QtCore import QTimer

        timer = QTimer(interval=STEP_MS)
        timer.timeout.connect(lambda: step() or timer.stop())
        timer.start()
        self.app.exec()

    def type(self, text: str) -> None:
        from PySide6.QtCore import Qt
        from PySide6.QtTest import QTest

        QTest.keyClicks(self.window.entry, text)
        QTest.keyClick(self.window.entry, Qt.Key.Key_Return)

    def stop(self) -> None:
        from PySide6.QtCore import Qt
        from PySide6.QtTest import QTest

        QTest.mouseClick(self.window.button, Qt.MouseButton.LeftButton)

    def close(self) -> None:
        self.window.close()

    def text(self) -> str:
        return str(self.window.text.toPlainText())

    def status(self) -> str:
        return str(self.window.status.text())


class Scenarios:
    """What a user does; each ends with the window closed. said: what the test looks at."""

    def __init__(self, hands: TkHands | QtHands, gate: threading.Event) -> None:
        self.hands, self.gate, self.window = hands, gate, hands.window
        self.said: dict[str, Any] = {}

    def talk(self) -> Steps:
        """Two questions; the second answer is stopped, and one more comes behind it."""
        yield lambda: self.hands.status() == "ready"
        self.hands.type("hello there")
        yield lambda: len(self.hands.text()) > 40
        self.said["streams"] = self.window.busy and "> hello there" in self.hands.text()
        self.hands.type("not now")  # nothing is asked while an answer runs
        self.hands.stop()
        yield lambda: not self.window.busy
        self.said["stopped"] = "tokens/s" in self.hands.status() and "> not now" not in self.hands.text()
        length = len(self.hands.text())
        self.hands.type("x")  # behind "not now", which still stands there
        yield lambda: len(self.hands.text()) > length + 30
        self.hands.stop()
        yield lambda: not self.window.busy
        self.said["turns"] = [turn.question for turn in self.window.talk.turns]
        self.hands.close()

    def stop_before(self) -> Steps:
        """Stop right behind the question, before its thread has begun."""
        yield lambda: self.hands.status() == "ready"
        self.hands.type("hello")
        self.hands.stop()
        yield lambda: not self.window.busy
        self.said["status"] = self.hands.status()
        self.hands.close()

    def close_while_loading(self) -> Steps:
        """The load waits in its listener until the window is gone."""
        yield lambda: "%" in self.hands.status()
        self.said["loading"] = not self.window.loading.done
        self.hands.close()

    def close_while_answering(self) -> Steps:
        yield lambda: self.hands.status() == "ready"
        self.hands.type("hello")
        yield lambda: len(self.hands.text()) > 20
        self.said["answering"] = self.window.busy
        self.hands.close()

    def refused(self) -> Steps:
        yield lambda: "There is no file" in self.hands.status()
        self.said["status"] = self.hands.status()
        self.hands.close()


def example(kind: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("window", EXAMPLES / f"window_{kind}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hold_back(scenario: str, gate: threading.Event) -> list[str]:
    """Let what would be over too soon with a tiny model wait for `gate`; returns what then happens, in its order."""
    order: list[str] = []
    load, free = LLM.load_in_background, Engine.close

    def loads_until_the_gate_opens(*models: Any, on_progress: Any, **options: Any) -> Any:
        def listen(progress: Any) -> None:
            on_progress(progress)
            assert gate.wait(60)

        heard = listen if scenario == "close_while_loading" else on_progress
        return load(*models, on_progress=heard, n_ctx=512, draft_tokens=3, library="llama", **options)

    def frees_behind_the_gate(engine: Engine) -> None:
        assert gate.wait(60)
        free(engine)
        order.append("freed")

    LLM.load_in_background = loads_until_the_gate_opens  # type: ignore[method-assign]
    Engine.close = frees_behind_the_gate  # type: ignore[method-assign]
    return order


def main(kind: str, scenario: str, *models: str) -> None:
    gate = threading.Event()
    order = hold_back(scenario, gate)
    hands = (TkHands if kind == "tk" else QtHands)(example(kind), list(models))
    scenarios = Scenarios(hands, gate)
    steps = getattr(scenarios, scenario)()
    waiting: list[Callable[[], bool]] = [next(steps)]
    left = [LONGEST_MS // STEP_MS]

    def step() -> bool:
        left[0] -= 1
        assert left[0], f"{scenario} stands still: {hands.status()!r} {hands.text()[-200:]!r}"
        if waiting[0]():
            following = next(steps, None)
            if following is None:
                return False
            waiting[0] = following
        return True

    hands.run(step)
    order.append("window gone")
    gate.set()
    print(json.dumps({**scenarios.said, "first": order[0]}), flush=True)
    globals()["held"] = hands  # until the end, as in the examples


if __name__ == "__main__":
    main(*sys.argv[1:])
