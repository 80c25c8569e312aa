"""What the screen shows of a conversation, in a real pseudo-terminal with an emulated screen. POSIX only."""

from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

__test__ = sys.platform != "win32"

if sys.platform != "win32":
    from tests.window import ROOT, Window

ANSWER = """\
# Rivers of the *north*

A **bold** word, some `inline code` and vector<int>, in a paragraph
that is broken anew.

1. First, with so many words that this item needs a second line of the window
2. Second
   - nested 你好世界你好世界你好世界你好世界你好世界你好世界你好世界

```python
def reverse(text):
    return text[::-1]  # and a remark that is too long for a window of sixty columns
```

| name | value |
|------|-------|
| one  | 12345 |

> The end.
"""
RENDERED = """\
Rivers of the north

A bold word, some inline code and vector<int>, in a
paragraph
that is broken anew.

 1. First, with so many words that this item needs a second
    line of the window
 2. Second
     • nested
       你好世界你好世界你好世界你好世界你好世界你好世界你好
       世界

  def reverse(text):
      return text[::-1]  # and a remark that is too long
  for a window of sixty columns

 name  value
 ───────────
 one   12345

▌ The end.
"""


@pytest.fixture
def answer(tmp_path: Path) -> Path:
    path = tmp_path / "answer.md"
    path.write_text(ANSWER, encoding="utf-8")
    return path


def between(text: str, first: str, last: str) -> str:
    return text.partition(first)[2].partition(last)[0]


def test_an_answer_is_rendered_while_it_comes_and_stands_there_once(tmp_path: Path, answer: Path) -> None:
    with Window(tmp_path, "chat", PACE="0.04") as window:
        window.enter(f"show {answer}")
        window.until("mean acceptance length")
        lines = window.text.split("answer.md\n")[1].split("\n")
        end = next(at for at, line in enumerate(lines) if " tokens/s" in line)
        assert "\n".join(lines[:end]) + "\n" == RENDERED
        assert re.search(rb"\x1b\[2m\d+ tokens, 10\.0 tokens/s, about 1\.4x plain\x1b\[0m", window.raw)
        assert "1.4x" not in window.text, "the line on how it goes leaves with the answer"


def test_an_answer_is_one_also_for_a_single_question_and_pure_text_in_a_pipe(
    tmp_path: Path, answer: Path
) -> None:
    with Window(tmp_path, "chat", "-q", "-p", f"show {answer}", columns=60, rows=40) as window:
        assert window.exit_code() == 0
        assert window.text + "\n" == RENDERED
    argv = [sys.executable, "-m", "tests.paced_llm", "chat", "-q", "--show-accepted", "-p", f"show {answer}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(argv, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True)
    assert (done.stdout.decode(), done.stderr) == (ANSWER, b"")


def test_plain_text_is_what_the_model_wrote_in_whole_words(tmp_path: Path, answer: Path) -> None:
    with Window(tmp_path, "chat", "-q", "--plain", rows=40) as window:
        window.enter(f"show {answer}")
        window.prompt()
        assert b"tokens/s" not in window.raw
        shown = window.text.split("answer.md\n")[1]
        assert "# Rivers of the *north*\n\nA **bold** word, some `inline code`" in shown
        assert (
            "    return text[::-1]  # and a remark that is too long for\na window of sixty columns" in shown
        )


def test_a_window_that_changes_its_size_shows_each_word_once(tmp_path: Path) -> None:
    """The paragraphs that come after it have the new width."""
    (tmp_path / "long.md").write_text(
        "\n\n".join(" ".join(f"{block}w{number}." for number in range(24)) for block in "abcdef"),
        encoding="utf-8",
    )
    with Window(tmp_path, "chat", "-q", PACE="0.02") as window:
        window.enter(f"show {tmp_path / 'long.md'}")
        window.until("bw5.")
        window.resize(80, 20)
        window.until("dw5.")
        window.resize(40, 20)
        window.until("fw23.")
        window.prompt()
        words = re.findall(r"[a-f]w\d+\.", window.text)
        assert len(words) == len(set(words)), "none twice"
        assert [word for word in words if word[0] == "f"] == [f"fw{number}." for number in range(24)]
        last = [line for line in window.lines if "fw" in line]
        assert max(map(len, last)) <= 39


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_console_that_cannot_print_an_emoji(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "emoji.md").write_text("- a 🙂 face\n\n> grüße\n", encoding="utf-8")
    with Window(tmp_path, "chat", "-q", "--show-accepted", PYTHONIOENCODING=encoding, LC_ALL="C") as window:
        window.enter(f"show {tmp_path / 'emoji.md'}")
        window.prompt()
        assert " * a ? face" in window.lines and "Traceback" not in window.text
        window.enter("/quit")
        assert window.exit_code() == 0


def test_the_colour_means_drafted_and_is_explained_once(tmp_path: Path, answer: Path) -> None:
    with Window(tmp_path, "chat", "-q", "--plain") as window:
        window.enter("/set color on")
        window.until("like this: drafted tokens that the target accepted")
        for _ in range(2):
            window.enter("say plain")
            window.enter(f"show {answer}")
        window.prompt()
        assert window.text.count("like this:") == 1
        assert b"# \x1b[32mRivers\x1b[39m of" in window.raw


# --- Ctrl-C, and other ways to end


def test_ctrl_c_ends_a_load_of_a_conversation(tmp_path: Path) -> None:
    with Window(tmp_path, "chat", LOAD="60") as window:
        window.until("loading the model")
        window.child.sendintr()
        assert window.exit_code() == 130


def test_ctrl_c_while_the_prompt_is_read_and_while_the_answer_comes(tmp_path: Path) -> None:
    with Window(tmp_path, "chat") as window:
        (tmp_path / "notes.txt").write_text("Rivers.")
        window.enter(f"/read {tmp_path}/notes.txt")
        window.until("notes.txt stands behind")
        window.enter("silent please")
        window.until("reading")
        window.child.sendintr()
        window.until("Stopped before the first word: nothing was kept.")
        window.until("Still behind the next question: notes.txt.")
        window.enter("/read")
        window.until("Taken back: notes.txt.")
        window.enter("slow")
        window.until("word word")
        window.child.sendintr()
        window.until("stopped, ")
        window.enter("/tokens")
        window.until("The model sees the whole conversation, 1 turn.")


def test_the_second_ctrl_c_at_an_empty_prompt_ends_and_the_conversation_is_kept(tmp_path: Path) -> None:
    with Window(tmp_path, "chat", "-q") as window:
        window.enter("say one")
        window.prompt()
        window.child.send("\x03")
        window.until("Ctrl-C again or /quit ends.")
        window.child.send("x\x03")  # something else was typed, and emptied
        window.prompt()
        window.child.send("\x03")
        window.until(lambda window: window.text.count("Ctrl-C again or /quit ends.") == 2)
        window.child.send("\x03")
        assert window.exit_code() == 0
    with Window(tmp_path, "chat", "--continue") as window:
        window.until("Going on with 1 turn, the last: say one")
        window.enter("and now")
        window.until("user:say one assistant:one user:and now")


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_an_answer_that_the_end_of_the_terminal_stops_is_kept_as_far_as_it_came(
    tmp_path: Path, number: str
) -> None:
    with Window(tmp_path, "chat", "-q") as window:
        window.enter("slow")
        window.until("word word")
        window.child.kill(getattr(signal, number))
        assert window.exit_code() == 128 + getattr(signal, number)
    with Window(tmp_path, "chat", "-q", "--continue") as window:
        window.enter("go on")
        window.until("user:slow assistant:word word")


def test_a_conversation_that_was_killed_goes_on_behind_its_last_answer(tmp_path: Path) -> None:
    with Window(tmp_path, "chat", "-q") as window:
        window.enter("say kept")
        window.enter("slow")
        window.until("word word")
        window.child.kill(signal.SIGKILL)
        window.exit_code()
    for _ in range(2):
        with Window(tmp_path, "chat", "--continue") as window:
            window.until("Going on with ")
            window.enter("say more")
            window.prompt()
            window.enter("/list")
            window.prompt()
            assert len(re.findall(r"20\d\d-\d\d-\d\d-\d{6}-\d+ ", window.text)) == 1, (
                "it is one conversation still"
            )
            window.enter("/quit")
            assert window.exit_code() == 0
    assert "Going on with 2 turns, the last: say more" in window.text


def test_a_terminal_that_is_gone_loses_no_conversation(tmp_path: Path) -> None:
    window = Window(tmp_path, "chat", "-q")
    window.enter("say kept")
    window.enter("slow")
    window.until("word word")
    window.child.close(force=False)
    with Window(tmp_path, "chat", "--continue") as window:
        window.until("Going on with 2 turns, the last: slow")


# --- what is typed


def test_lines_that_arrive_at_once_are_one_message(tmp_path: Path) -> None:
    with Window(tmp_path, "chat", "-q", "--plain") as window:
        window.enter("one\rtwo\r\rthree")
        window.until("user:one\ntwo\n\nthree")
        window.prompt()
        window.child.send("\x1b[200~four\rfive\x1b[201~")
        window.until("  five")
        window.child.send("\r")
        window.until("user:four\nfive")


def test_three_quotes_hold_a_message_of_any_lines(tmp_path: Path) -> None:
    with Window(tmp_path, "chat", "-q", "--plain") as window:
        window.prompt()
        for line in ('"""', "/help", "b"):
            window.child.send(f"{line}\r")
            window.until(line)
        window.child.send('"""\r')
        window.until("user:/help\nb")


def test_tab_completes_commands_and_what_stands_behind_them(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some notes")
    (tmp_path / "other.txt").write_text("some others")
    with Window(tmp_path, "chat", "-q", columns=100) as window:
        window.enter("say one")
        window.enter("/save first talk")
        window.prompt()
        for keys, line in (
            ("/und\t", "> /undo"), ("/set mark\t of\t", "> /set markdown off"), ("/load fir\t", "> /load first talk"),
            ("/model smoll\t", "> /model smollm2-135m"), (f"/read {tmp_path}/no\t", f"> /read {tmp_path}/notes.txt"),
            ("/full dr\t", "> /full drop_oldest"), ("/nothing \t", "> /nothing"),
        ):  # fmt: skip
            window.child.send(keys)
            window.until(lambda window, line=line: window.lines[-1] == line)  # type: ignore[misc]
            window.child.send("\x03")
            window.prompt()


def editor(folder: Path, text: str) -> str:
    script = folder / "editor.sh"
    script.write_text(f"#!/bin/sh\nprintf '%s' '{text}' >> \"$1\"\n")
    script.chmod(0o755)
    return str(script)


def test_the_editor_changes_the_last_question_and_the_input(tmp_path: Path) -> None:
    with Window(tmp_path, "chat", "-q", VISUAL=editor(tmp_path, " more")) as window:
        window.enter("/edit")
        window.until("Asked: more")
        window.prompt()
        window.enter("say one")
        window.enter("/edit")
        window.until("Asked instead: say one more")
        window.prompt()
        assert window.lines[-3:-1] == ["one", "more"]
        window.child.send("say two\x18\x05")
        window.until(lambda window: window.lines[-2:] == ["> say two", "   more"])
        window.child.send("\r")
        window.prompt()
        window.enter("/tokens")
        window.until("The model sees the whole conversation, 3 turns.")


def test_the_answer_is_copied_as_the_model_wrote_it(tmp_path: Path, answer: Path) -> None:
    with Window(tmp_path, "chat", "-q") as window:
        window.enter("/copy")
        window.until("There is no answer to copy.")
        window.enter(f"show {answer}")
        for line, copied in (("/copy", ANSWER.rstrip("\n")), ("/copy code", ANSWER.split("```")[1][7:])):
            window.enter(line)
            window.prompt()
            assert f"]52;c;{base64.b64encode(copied.encode()).decode()}".encode() in window.raw
