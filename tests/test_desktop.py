"""The desktop window: a real one on a virtual display, with models that really load; keys and clicks as a user's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt, QTimer
from PySide6.QtGui import QColor, QGuiApplication, QPalette, QTextCursor
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget

from localspec import LLM, Conversation
from localspec.cli import main as command
from localspec.cli.chat.kept import Kept
from localspec.desktop.markdown import LONGEST_BLOCK, Markdown, first_block
from localspec.desktop.preferences import Preferences
from localspec.desktop.settings import Settings
from localspec.desktop.shelf import Message, Shelf, Talk
from localspec.desktop.transcript import MARK, Transcript
from localspec.desktop.window import NARROW, Window
from localspec.errors import InvalidRequest
from tests.display import virtual_display
from tests.hubkit import hub_of, sandbox
from tests.storekit import ROOT
from tests.tinygguf import write_llama, write_pair, write_stranger

LOAD = {"library": "llama", "threads": 1}
SECONDS = 60
STALL = 0.1
TICK = 0.02
ANSWER = """\
A **bold** word and `code`:

```python
def twice(x):
    return 2 * x  # <b>
```

| a | b |
|---|---|
| 1 | 2 |

1. one

   still one
2. two

[link](https://example.org) [no](edit:0) ![picture](file:///etc/hostname) <script>x</script>
"""


@pytest.fixture(scope="module")
def application() -> Iterator[QApplication]:
    with pytest.MonkeyPatch.context() as patch, virtual_display() as display:
        if display:
            patch.setenv("DISPLAY", display)
            patch.setenv("QT_QPA_PLATFORM", "xcb")
        application = QApplication(["localspec"])
        application.setQuitOnLastWindowClosed(False)
        yield application
        application.shutdown()  # before the display goes


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A pair, a target so deep that reading and answering take seconds, and one of another vocabulary."""
    folder = tmp_path_factory.mktemp("models")
    target, draft = write_pair(folder, n_ctx_train=8192)
    return {
        "target": target,
        "draft": draft,
        "deep": write_llama(folder / "deep.gguf", seed=1, n_layer=40, n_ctx_train=8192),
        "other": write_llama(folder / "other.gguf", seed=3, n_ctx_train=8192, n_vocab=320),
    }


class Desk:
    """A window and the hands of its user. `fetch` says whether the model may be downloaded at the start."""

    def __init__(self, home: Path, model: str | Path = "", **options: object) -> None:
        self.window = Window(home, str(model), {**LOAD, **options})
        self.window.gone.connect(self._end)
        self.is_gone = False
        self.window.show()
        assert QTest.qWaitForWindowExposed(self.window)
        self.window.activateWindow()  # keys go to it, without a window manager too
        assert QTest.qWaitForWindowActive(self.window)

    def _end(self) -> None:
        self.is_gone = True

    @property
    def ui(self):
        return self.window.ui

    @property
    def shown(self) -> str:
        return self.ui.transcript.toPlainText()

    @property
    def messages(self) -> list[Message]:
        return self.window.chat.talk.messages

    @property
    def running(self) -> str:
        """What the running answer has said; "" where none runs."""
        answer = self.window.chat.answer
        return "" if answer is None else answer.text

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, (self.ui.notice.text(), self.ui.meter.text())
            QTest.qWait(10)

    def until_loaded(self) -> None:
        self.until(lambda: self.window.chat.has_model)

    def until_answered(self) -> None:
        self.until(lambda: self.window.chat.answer is None and self.ui.transcript.drawn)

    def type(self, text: str) -> None:
        QTest.keyClicks(self.ui.composer.input, text)

    def ask(self, text: str) -> None:
        self.type(text)
        QTest.keyClick(self.ui.composer.input, Qt.Key.Key_Return)
        assert self.window.chat.answer is not None, self.ui.notice.text()

    def say(self, text: str) -> str:
        """Ask, let some of the answer come, stop it, and return it."""
        self.ask(text)
        self.until(lambda: len(self.running) > 20)
        self.click(self.ui.composer.stop)
        self.until_answered()
        return self.messages[-1]["content"]

    def click(self, button: QWidget) -> None:
        assert button.isVisible() and button.isEnabled()
        QTest.mouseClick(button, Qt.MouseButton.LeftButton)

    def follow(self, index: int, link: str) -> None:
        """Click a link of the transcript: the one that stands behind message `index`'s name."""
        transcript = self.ui.transcript
        cursor = QTextCursor(transcript.document())
        while not (cursor := transcript.document().find(link, cursor)).isNull():
            if cursor.charFormat().anchorHref().endswith(f":{index}"):
                transcript.setTextCursor(cursor)
                transcript.ensureCursorVisible()
                place = transcript.cursorRect(cursor).center() - QPoint(4, 0)
                QTest.mouseClick(transcript.viewport(), Qt.MouseButton.LeftButton, pos=place)
                return
        raise AssertionError(f"no link {link} for message {index} in {self.shown}")

    def close(self) -> None:
        self.window.close()
        self.until(lambda: self.is_gone)


@pytest.fixture
def desk(application, tmp_path, monkeypatch) -> Iterator[Callable[..., Desk]]:
    """Opens windows on a home of their own. What a slot raises fails the test."""
    raised: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: raised.append(error))
    desks: list[Desk] = []

    def opened(model: str | Path = "", home: Path = tmp_path / "home", **options: object) -> Desk:
        desks.append(Desk(home, model, **options))
        return desks[-1]

    yield opened
    for each in desks:
        if not each.is_gone:
            each.close()
        each.window.deleteLater()
    QTest.qWait(50)
    assert raised == []


# Answers


def test_an_answer_streams_is_stopped_and_found_again(desk, files, tmp_path):
    here = desk(files["target"])
    assert not here.ui.composer.send.isEnabled()
    here.type("first line")
    here.window.chat.ask()
    assert "No model is ready yet" in here.ui.notice.text() and here.window.chat.answer is None
    here.until_loaded()
    QTest.keyClick(here.ui.composer.input, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    here.ask("and a second")
    here.until(lambda: len(here.running) > 40)
    assert here.ui.composer.stop.isVisible() and not here.ui.composer.send.isVisible()
    here.until(lambda: "tokens/s" in here.ui.meter.text())
    QTest.keyClick(here.window, Qt.Key.Key_Escape)
    here.until_answered()
    question, answer = here.messages
    assert question == {"role": "user", "content": "first line\nand a second"}
    assert answer["role"] == "assistant" and len(answer["content"]) > 40
    assert "stopped" in here.ui.meter.text() and "first line" in here.shown
    here.close()
    again = desk()
    assert [talk.messages for talk in again.window.chat.talks] == [[question, answer]]
    assert again.window.settings.model == str(files["target"])
    again.until_loaded()
    item = again.ui.sidebar.list.item(0)
    assert item.text() == "first line and a second"
    place = again.ui.sidebar.list.visualItemRect(item).center()
    QTest.mouseClick(again.ui.sidebar.list.viewport(), Qt.MouseButton.LeftButton, pos=place)
    again.until(lambda: again.ui.transcript.drawn)
    assert "first line" in again.shown
    again.say("go on")
    assert again.messages[:2] == [question, answer] and len(again.messages) == 4


def test_the_models_state_is_found_again_and_only_one_is_kept(desk, files, tmp_path):
    here = desk(files["target"])
    here.until_loaded()
    here.say("one")
    here.window.chat.begin()
    here.say("two")
    here.close()
    (state,) = (tmp_path / "home" / "desktop-conversations").glob("*.localspec")
    key = here.window.chat.talks[0].key
    assert state.stem == key
    with LLM.from_files(files["target"], n_ctx=4096, **LOAD) as llm:
        talk = Conversation.load(llm, state)
        assert "is restored" in talk.restored and talk.messages == here.messages


def test_it_stops_while_the_prompt_is_read_and_the_question_is_not_lost(desk, files):
    here = desk(files["deep"])
    here.until_loaded()
    here.ui.composer.input.setPlainText("many words " * 320)
    QTest.keyClick(here.ui.composer.input, Qt.Key.Key_Return)
    QTest.qWait(200)
    assert here.running == "" and here.window.chat.answer is not None
    here.click(here.ui.composer.stop)
    here.until_answered()
    assert here.messages == [] and here.window.chat.talks == []
    assert here.ui.composer.question() == ("many words " * 320).strip()
    here.ui.composer.input.clear()
    here.say("short")
    assert len(here.messages) == 2


def test_a_question_is_edited_and_an_answer_regenerated(desk, files):
    here = desk(files["target"])
    here.until_loaded()
    first, second = here.say("one"), here.say("two")
    assert [message["content"] for message in here.messages] == ["one", first, "two", second]
    here.follow(3, "Regenerate")
    here.until(lambda: len(here.running) > 5)
    here.window.stop()
    here.until_answered()
    assert [message["content"] for message in here.messages[:3]] == ["one", first, "two"]
    assert here.messages[3]["content"] != second and len(here.messages) == 4
    kept = here.messages
    here.follow(1, "Regenerate")  # what follows would go: the user has to say so
    assert here.ui.composer.replaces == 0 and here.ui.composer.question() == "one"
    here.click(here.ui.composer.drop)
    here.ui.composer.input.clear()
    assert here.messages == kept
    here.follow(2, "Edit")
    assert here.ui.composer.about.isVisible() and here.ui.composer.question() == "two"
    third = here.say(" and a half")
    assert [message["content"] for message in here.messages] == ["one", first, "two and a half", third]
    assert here.shown.count("two") == 1
    here.follow(3, "Copy")
    assert QGuiApplication.clipboard().text() == third


def test_an_edit_that_is_stopped_before_it_is_answered_loses_nothing(desk, files):
    here = desk(files["deep"])
    here.until_loaded()
    here.say("one")
    kept = here.messages
    here.follow(0, "Edit")
    here.ui.composer.input.setPlainText("many words " * 320)
    QTest.keyClick(here.ui.composer.input, Qt.Key.Key_Return)
    QTest.qWait(100)
    assert here.running == ""
    here.window.stop()
    here.until_answered()
    assert here.messages == kept and here.ui.composer.replaces == 0 and "one" in here.shown
    here.ui.composer.clear_extras()
    here.ui.composer.input.clear()
    here.say("two")
    assert here.messages[:2] == kept and len(here.messages) == 4


def test_an_answer_goes_on_while_another_conversation_is_shown(desk, files):
    here = desk(files["target"])
    here.until_loaded()
    here.ask("one")
    here.until(lambda: len(here.running) > 20)
    answered = here.window.chat.talk
    here.window.chat.begin()
    before = len(here.running)
    here.until(lambda: len(here.running) > before + 20)
    assert here.shown == "" and here.ui.composer.stop.isVisible()
    assert [talk.title for talk in here.window.chat.talks] == ["one"]
    here.window.chat.open(answered)
    here.until(lambda: len(here.shown) > before)
    here.window.stop()
    here.until_answered()
    assert answered.messages[1]["content"].startswith(here.messages[1]["content"][:20])


def test_a_file_is_attached_and_one_that_is_no_text_is_refused(desk, files, tmp_path):
    here = desk(files["target"])
    here.until_loaded()
    notes, picture = tmp_path / "notes.txt", tmp_path / "picture.png"
    notes.write_text("a line\n", encoding="utf-8")
    picture.write_bytes(b"\x89PNG\xff")
    here.ui.composer.attach_file(picture)
    assert "picture.png is no text in UTF-8" in here.ui.notice.text()
    here.ui.composer.attach_file(notes)
    assert "notes.txt" in here.ui.composer.about.text()
    here.say("What is in it?")
    assert here.messages[0]["content"] == "What is in it?\n\nnotes.txt:\n```\na line\n```"
    assert here.ui.composer.files == []


def test_drafting_is_switched_off_and_drafted_text_marked(desk, files, shelf):
    shelf.fill()
    here = desk("tiny", home=shelf.home, draft_tokens=3)
    here.window.settings.temperature = 0.0
    here.until_loaded()
    here.click(here.ui.drafting)
    here.say("abc")
    assert here.ui.meter.text().endswith("drafting off: asked for")
    here.click(here.ui.drafting)
    here.click(here.ui.colours)
    here.ui.composer.input.setPlainText("abcdefgh " * 12)
    QTest.keyClick(here.ui.composer.input, Qt.Key.Key_Return)
    here.until_answered()  # the context ends it
    assert "cut off" in here.ui.meter.text() and "drafting on" in here.ui.meter.text()
    marks = here.window.chat.talk.marks[3]
    assert len(marks) == len(here.messages[3]["content"])
    assert marks.count(True) > len(marks) / 4 and "drafted accepted" in here.ui.meter.text()
    here.close()
    kept = json.loads((shelf.home / "desktop.json").read_text(encoding="utf-8"))
    assert kept["drafting"] is True and kept["colours"] is True


# Models


def test_another_model_goes_on_with_the_conversation(desk, files):
    here = desk(files["target"])
    here.until_loaded()
    here.say("one")
    before = here.messages
    here.window.load(str(files["other"]))
    assert not here.ui.composer.send.isEnabled()
    here.until_loaded()
    here.say("two")
    assert here.messages[:2] == before and len(here.messages) == 4
    assert here.ui.model.text() == "other.gguf"


def test_a_refused_pair_says_why_and_the_next_choice_works(desk, files, tmp_path):
    stranger = write_stranger(tmp_path / "stranger.gguf")
    here = desk(stranger)
    here.until(lambda: here.ui.notice.isVisible())
    assert "stranger.gguf" in here.ui.notice.text() and not here.window.chat.has_model
    assert not here.ui.progress.isVisible()
    here.window.load("nonsense")
    here.until(lambda: "no pair named 'nonsense'" in here.ui.notice.text())
    here.window.load("smollm2-135m")
    here.until(lambda: here.window.picker.list.count())
    assert "Choose it once more to download it." in here.ui.notice.text()
    assert here.window.picker.list.currentItem().text().startswith("smollm2-135m (")
    here.window.picker.reject()
    here.window.load(str(files["target"]))
    here.until_loaded()
    assert "nonsense" not in here.ui.notice.text()


def test_the_picker_downloads_stops_goes_on_and_tells_what_does_not_fit(desk, shelf, tmp_path, monkeypatch):
    sandbox(monkeypatch, tmp_path)
    monkeypatch.setattr("localspec.engine.memory.free_memory", lambda: 3_000_000_000)
    bodies = {path.name: path.read_bytes() for path in shelf.originals}
    with hub_of(bodies, monkeypatch) as hub:
        hub.chunk_pause = 0.05
        here = desk(home=shelf.home)  # nothing was chosen yet: the picker opens
        picker = here.window.picker
        here.until(lambda: picker.isVisible() and picker.list.count())
        texts = [picker.list.item(row).text() for row in range(picker.list.count())]
        (mine,) = [row for row, text in enumerate(texts) if text.startswith("tiny (")]
        assert "to download" in texts[mine] and "does not fit" not in texts[mine]
        (large,) = [text for text in texts if text.startswith("qwen3-32b (")]
        assert "of memory needed, 3.00 GB free" in large
        picker.list.setCurrentRow(mine)
        assert picker.load.text() == "Download and load"
        here.click(picker.load)
        here.until(lambda: "download" in here.ui.progress.text())
        here.click(here.ui.cancel)
        here.until(lambda: "was stopped" in here.ui.notice.text())
        assert not here.ui.progress.isVisible() and not here.window.chat.has_model
        hub.chunk_pause = 0.0
        here.window.load("tiny", download=True)
        here.until_loaded()
        here.click(here.ui.model)
        here.until(lambda: picker.list.item(0).text().startswith("tiny (on this disk"))
        assert picker.load.text() == "Load"
        picker.reject()
        here.say("abc")


def test_settings_hold_for_the_next_answer_and_are_remembered(desk, files, tmp_path):
    here = desk(files["target"])
    here.until_loaded()
    here.click(here.ui.settings)
    dialog = here.window.findChild(Preferences)
    dialog.temperature.setValue(0.0)
    dialog.n_ctx.setValue(1024)
    dialog.system.setPlainText("Be brief.")
    dialog.accept()
    here.until_loaded()
    first = here.say("abc")
    here.window.chat.begin()
    second = here.say("abc")
    assert first[:20] == second[:20]
    llm = here.window._holder._llm
    assert llm.settings["target"]["n_ctx"] == 1024
    (talk, *_) = here.window._holder._open.values()
    assert talk.messages[0] == {"role": "system", "content": "Be brief."}
    here.close()
    (tmp_path / "home" / "desktop.json").write_text('{"n_ctx": "x", "temperature": 0.5, "foo": 1}')
    assert desk(files["target"]).window.settings.n_ctx == 4096


# The end


@pytest.mark.parametrize("delay", [0, 30, 150])
def test_it_closes_while_a_model_loads(desk, files, delay):
    here = desk(files["deep"])
    QTest.qWait(delay)
    here.close()
    assert here.window._holder._llm is None


@pytest.mark.parametrize("reading", [True, False], ids=["reading", "answering"])
def test_it_closes_while_it_answers_and_keeps_what_was_said(desk, files, tmp_path, reading):
    here = desk(files["deep"])
    here.until_loaded()
    if reading:
        here.ui.composer.input.setPlainText("many words " * 320)
        QTest.keyClick(here.ui.composer.input, Qt.Key.Key_Return)
    else:
        here.ask("one")
        here.until(lambda: len(here.running) > 20)
    here.close()
    talks = Shelf(tmp_path / "home").all()
    assert [len(talk.messages) for talk in talks] == ([] if reading else [2])


def test_a_conversation_is_deleted_but_not_while_it_is_answered(desk, files, tmp_path):
    here = desk(files["target"])
    here.until_loaded()
    here.say("one")
    here.ask("two")
    here.ui.sidebar.list.setFocus()
    QTest.keyClick(here.ui.sidebar.list, Qt.Key.Key_Delete)
    assert "Stop the answer" in here.ui.notice.text()
    here.window.stop()
    here.until_answered()
    here.ui.sidebar.list.setFocus()
    QTest.keyClick(here.ui.sidebar.list, Qt.Key.Key_Delete)
    assert here.window.chat.talks == [] and here.messages == []
    here.close()
    assert list((tmp_path / "home" / "desktop-conversations").iterdir()) == []


# Never a stall

BESIDE = """
import sys, time
longest, last = 0.0, time.monotonic()
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.02)[0]:
    now = time.monotonic()
    longest, last = max(longest, now - last), now
print(longest)
"""


class Pulse:
    """A timer in the window, and one in a process that does nothing else: what the machine keeps both waiting is not
    the window's fault.
    """

    def __enter__(self) -> Pulse:
        self.longest, self.last = 0.0, time.monotonic()
        command = [sys.executable, "-c", f"import select{BESIDE}"]
        self._beside = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._beside.stdout.readline() == "ready\n"
        self._timer = QTimer()
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._beat)
        self.last = time.monotonic()
        self._timer.start(int(1000 * TICK))
        return self

    def _beat(self) -> None:
        now = time.monotonic()
        self.longest, self.last = max(self.longest, now - self.last), now

    def __exit__(self, *_: object) -> None:
        self._timer.stop()
        self.beside = float(self._beside.communicate("\n")[0])

    @property
    def stalled(self) -> bool:
        return self.longest > STALL + TICK + self.beside


def test_the_window_never_stalls(desk, files, tmp_path):
    """In a load, a prefill, an answer, a conversation with much to draw, and while it closes. What stalls by itself
    does so every time; what a busy machine does is not there the next time.
    """
    seen: list[dict[str, float]] = []
    for attempt in range(4):
        pulses = _a_day_of_a_window(desk, files, tmp_path / str(attempt))
        seen.append({what: pulse.longest for what, pulse in pulses.items() if pulse.stalled})
        if not seen[-1]:
            return
    raise AssertionError(seen)


def _a_day_of_a_window(desk, files, home: Path) -> dict[str, Pulse]:
    pulses = {what: Pulse() for what in ("load", "prefill", "answer", "conversation", "close")}
    with pulses["load"]:
        here = desk(files["deep"], home=home)
        here.until_loaded()
    with pulses["prefill"]:
        here.ui.composer.input.setPlainText("many words " * 320)
        QTest.keyClick(here.ui.composer.input, Qt.Key.Key_Return)
        QTest.qWait(300)
        here.window.stop()
        here.until_answered()
    here.ui.composer.input.clear()
    here.window.load(str(files["target"]))
    here.until_loaded()
    here.ui.colours.setChecked(True)
    with pulses["answer"]:
        here.ask("abc")
        QTest.qWait(2000)
    here.window.stop()
    here.until_answered()
    long = [{"role": "user", "content": "q"}, {"role": "assistant", "content": 20 * ANSWER}]
    marks = {index: [True, False] * (10 * len(ANSWER)) for index in range(1, 40, 2)}
    with pulses["conversation"]:
        here.window.chat.open(Talk(messages=20 * long, marks=marks))
        here.until(lambda: here.ui.transcript.drawn)
    here.ask("abc")
    here.until(lambda: len(here.running) > 20)
    with pulses["close"]:
        here.close()
    return pulses


def test_qt_gives_back_no_reference_to_none_that_it_does_not_hold(transcript):
    """Before Python 3.12 thousands of them end the process: what is installed must not be such a PySide6."""
    draw(transcript, ANSWER, 20)
    before = sys.getrefcount(None)
    for _ in range(20):
        draw(transcript, ANSWER, 20)
    assert sys.getrefcount(None) > before - 200


# What is drawn


@pytest.fixture
def transcript(application) -> Iterator[Transcript]:
    transcript = Transcript()
    transcript.resize(600, 500)
    transcript.show()
    yield transcript
    transcript.close()
    transcript.deleteLater()


def draw(transcript: Transcript, answer: str, step: int) -> str:
    """As a running answer, in pieces of `step` characters; what is shown in the end."""
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": ""}]
    transcript.show_messages(messages, {}, running=True)
    for place in range(0, len(answer), step):
        transcript.feed(answer[place : place + step], (False,) * len(answer[place : place + step]))
        transcript._redrawn = 0.0
        transcript.tick()
    transcript.end()
    while not transcript.drawn:
        transcript.tick()
    return transcript.document().toHtml()


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_an_answer_looks_the_same_however_it_came(transcript, step):
    whole = [{"role": "user", "content": "q"}, {"role": "assistant", "content": ANSWER}]
    transcript.show_messages(whole, {})
    while not transcript.drawn:
        transcript.tick()
    expected = transcript.document().toHtml()
    assert draw(transcript, ANSWER, step) == expected
    text = transcript.toPlainText()
    assert "return 2 * x  # <b>" in text and "**" not in text and "```" not in text and "<script>" in text
    assert expected.count("<table") == 1 and "font-weight:700" in expected
    assert 'href="https://example.org"' in expected and 'href="edit:0"' in expected
    assert expected.count('href="edit:') == 1 and "<img" not in expected  # the link of the question alone


@pytest.mark.parametrize(
    "text",
    [
        "word " * 20_000,
        "x" * 50_000,
        "line\n" * 20_000,
        "```python\n" + "x = 1  # one\n" * 8000,
        "- item\n\n" * 5000,
    ],
    ids=["words", "letters", "lines", "code", "list"],
)
def test_what_is_drawn_again_stays_short(text):
    """However the answer is made, and nothing of it is lost."""
    rest, drawn = text, ""
    while (cut := first_block(rest))[0]:
        assert cut[0] <= 2 * LONGEST_BLOCK
        drawn, rest = drawn + rest[: cut[0]], cut[1] + rest[cut[0] :]
    assert len(rest) <= 2 * LONGEST_BLOCK
    assert (drawn + rest).replace("```python\n", "") == text.replace("```python\n", "")
    if text.startswith("```"):
        assert rest.startswith("```python\n")


def test_drafted_characters_are_marked_where_they_are_drawn(transcript):
    transcript.colours = True
    answer = "A **bold** 🙂 word and `code`.\n"
    marks = [False] * len(answer)
    for word in ("bold", "word", "code"):
        place = answer.index(word)
        marks[place : place + len(word)] = [True] * len(word)
    transcript.show_messages(
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}], {1: marks}
    )
    while not transcript.drawn:
        transcript.tick()
    found = ""
    cursor = QTextCursor(transcript.document())
    while not cursor.atEnd():
        cursor.movePosition(QTextCursor.MoveOperation.NextCharacter, QTextCursor.MoveMode.KeepAnchor)
        if cursor.charFormat().background().color() == MARK:
            found += cursor.selectedText()
        cursor.clearSelection()
    assert found == "boldwordcode"


def test_code_is_highlighted_for_light_and_dark():
    source = "```python\nreturn None\n```\n"
    light, dark = Markdown(dark=False).html(source), Markdown(dark=True).html(source)
    assert light.count("<span style=") == 2 and light != dark
    assert "<pre>" in Markdown(dark=False).html("```nolanguage\n<x>\n```\n")


def test_a_narrow_window_hides_the_list_and_dark_colours_are_followed(desk, files, application):
    here = desk(files["target"])
    assert here.ui.sidebar.isVisible()
    here.window.resize(NARROW - 100, 500)
    here.until(lambda: not here.ui.sidebar.isVisible())
    here.click(here.ui.menu)
    assert here.ui.sidebar.isVisible()
    here.close()
    here = desk(files["target"])
    assert not here.ui.sidebar.isVisible(), "it opens as narrow as it was"
    usual = application.palette()
    light = here.ui.transcript.document().defaultStyleSheet()
    application.setPalette(QPalette(QColor("#2d2d2d"), QColor("#222222")))
    try:
        here.until(lambda: here.ui.transcript.document().defaultStyleSheet() != light)
    finally:
        application.setPalette(usual)


# What it stands on


def test_conversations_that_cannot_be_read_are_passed_over(tmp_path):
    shelf = Shelf(tmp_path)
    messages = [{"role": "user", "content": "ü" * 100}, {"role": "assistant", "content": "a"}]
    shelf.save("good", messages)
    for name, text in {
        "empty": "", "list": "[]", "odd": '{"messages": [{"role": "user", "content": "a"}]}',
        "number": '{"messages": [{"role": "user", "content": 1}, {"role": "assistant", "content": "a"}]}',
    }.items():  # fmt: skip
        (shelf.folder / f"{name}.json").write_text(text)
    odd = json.dumps({"messages": [{**message, "content": "\ud800"} for message in messages]})
    (shelf.folder / "half.json").write_text(odd)
    (shelf.folder / "deep.json").write_text("[" * 100_000)
    (shelf.folder / "folder.json").mkdir()
    (shelf.folder / "gone.json").symlink_to(tmp_path / "nowhere")
    assert [talk.messages for talk in shelf.all()] == [messages]
    assert Shelf(tmp_path / ("a" * 300)).all() == [], "the system knows no such name"
    assert Talk(messages=messages).title == "ü" * 60 + "…"
    if os.name == "posix":
        assert shelf.folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000, "[]", '{"width": 1000000000000, "height": -1, "n_ctx": 0}', f'{{"n_ctx": {10**30}}}',
        '{"temperature": NaN, "model": "\\ud800"}', '{"temperature": 1e999, "system": "\\ud800", "drafting": 1}',
    ],
)  # fmt: skip
def test_a_window_opens_with_damaged_settings(desk, tmp_path, text):
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "desktop.json").write_text(text)
    here = desk()
    assert here.window.settings == Settings()
    assert Preferences(here.window, here.window.settings).n_ctx.value() == Settings().n_ctx


def test_what_was_saved_by_name_in_the_terminal_stays(files, tmp_path):
    """Where both have one folder: LOCALSPEC_HOME, and always on Windows and macOS."""
    with LLM.from_files(files["target"], n_ctx=256, **LOAD) as llm:
        talk = llm.conversation(max_tokens=4)
        list(talk.ask("one"))
        saved = Kept(tmp_path / "conversations", {}).save(talk, "mine")
        shelf = Shelf(tmp_path)
        shelf.save("a", talk.messages)
        talk.save(shelf.state_of("a"))
        shelf.keep_state_of("a")
        shelf.keep_state_of("b")
        assert saved.is_file() and not shelf.state_of("a").exists()
        assert [entry.name for entry in Kept(tmp_path / "conversations", {}).entries()] == ["mine"]


def test_an_answer_that_cannot_be_saved_stays_in_sight(desk, files, tmp_path):
    here = desk(files["target"])
    here.until_loaded()
    (tmp_path / "home" / "desktop-conversations").write_text("no folder")
    here.say("one")
    here.until(lambda: here.ui.notice.text())
    assert "desktop-conversations" in here.ui.notice.text()
    assert len(here.messages) == 2 and here.messages[1]["content"] and "one" in here.shown


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such pipes")
def test_a_pipe_is_not_attached(desk, tmp_path):
    here = desk()
    os.mkfifo(tmp_path / "pipe")
    here.ui.composer.attach_file(tmp_path / "pipe")
    assert here.ui.composer.files == [] and "is no file" in here.ui.notice.text()


def test_names_of_files_are_shown_as_they_are(desk, tmp_path):
    path = tmp_path / "<b>x.txt"
    path.write_text("text")
    here = desk()
    here.ui.composer.attach_file(path)
    for label in (here.ui.composer.about, here.ui.notice, here.ui.meter):
        assert label.textFormat() == Qt.TextFormat.PlainText
    assert "<b>x.txt" in here.ui.composer.about.text()


def test_a_conversation_goes_on_from_messages(files, tmp_path):
    greedy = {"temperature": 0.0, "max_tokens": 8}
    with LLM.from_files(files["target"], n_ctx=1024, **LOAD) as llm:
        talk = llm.conversation("Be brief.", **greedy)
        for question in ("one", "two"):
            list(talk.ask(question))
        again = Conversation.from_messages(llm, talk.messages, **greedy)
        assert again.messages == talk.messages
        again.save(tmp_path / "talk")
        assert Conversation.load(llm, tmp_path / "talk").messages == talk.messages
        *_, last = again.ask("three")
        expected = llm.generate([*talk.messages, {"role": "user", "content": "three"}], **greedy)
        assert last.completion.text == expected.text
        assert last.stats == last.completion.stats and last.stats.tokens == 8
        with pytest.raises(InvalidRequest, match="take turns"):
            Conversation.from_messages(llm, talk.messages[1:2])
        assert Conversation.from_messages(llm, []).messages == []
        nul = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b\0c"}]
        odd = Conversation.from_messages(llm, nul, **greedy)
        assert odd.messages == nul and list(odd.ask("d"))[-1].completion.ids


def test_every_chunk_has_the_counters_so_far(files):
    with LLM.from_files(files["target"], files["draft"], n_ctx=1024, draft_tokens=3, **LOAD) as llm:
        chunks = list(llm.stream("abc", temperature=0.0, max_tokens=40))
    counts = [chunk.stats.tokens for chunk in chunks]
    assert counts == sorted(counts) and len(set(counts)) > 3
    assert sum(len(chunk.tokens) for chunk in chunks[:3]) == counts[2]
    assert chunks[-1].stats == chunks[-1].completion.stats


# The command


def app_command(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "LOCALSPEC_HOME": str(tmp_path / "home"), **variables}
    return subprocess.Popen(
        [sys.executable, "-m", "localspec", "app", *arguments],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_the_command_ends_in_order_on_ctrl_c(application, files, tmp_path):
    child = app_command(tmp_path, str(files["target"]))
    memory = tmp_path / "home" / "desktop.json"
    deadline = time.monotonic() + SECONDS
    while not memory.exists():
        assert time.monotonic() < deadline and child.poll() is None, child.communicate()
        time.sleep(0.05)
    child.send_signal(2)
    out, err = child.communicate(timeout=SECONDS)
    assert (child.returncode, out) == (0, "") and "Traceback" not in err


def test_without_qt_the_command_names_the_extra(tmp_path, monkeypatch):
    from click.testing import CliRunner

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(command, ["app"])
    assert result.exit_code == 1 and '".[desktop]"' in result.output and "PySide6-Essentials" in result.output


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="a display needs no variable there")
def test_without_a_display_the_command_says_so(tmp_path):
    child = app_command(tmp_path, DISPLAY="", WAYLAND_DISPLAY="", QT_QPA_PLATFORM="")
    _, err = child.communicate(timeout=SECONDS)
    assert child.returncode == 1 and "There is no display" in err and "localspec chat" in err


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="windows do not go by X there")
def test_a_display_that_does_not_answer_is_named(tmp_path):
    child = app_command(tmp_path, DISPLAY=":98765", WAYLAND_DISPLAY="", QT_QPA_PLATFORM="")
    _, err = child.communicate(timeout=SECONDS)
    assert child.returncode == 1 and "':98765'" in err and "localspec chat" in err
