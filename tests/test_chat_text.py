"""How the text of an answer is laid out: lines of whole words, Markdown that grows, what was drafted."""

from __future__ import annotations

import base64
import io
import re
import sys
from collections.abc import Callable
from typing import Any

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from localspec.cli.chat import clipboard
from localspec.cli.chat.entry import is_open, unquoted
from localspec.cli.chat.lines import Lines
from localspec.cli.chat.live import Live
from localspec.cli.chat.markdown import Renderer, blocks, finished
from localspec.cli.chat.pieces import Marks
from localspec.cli.chat.view import Raw, Worded, legend, paint, view
from localspec.text.controls import printable
from tests.test_chat_screen import ANSWER, RENDERED

# --- lines of whole words


def broken(text: str, columns: int, sizes: list[int] | None = None) -> str:
    lines = Lines(lambda: columns)
    parts = [text] if sizes is None else [text[start : start + 3] for start in range(0, len(text), 3)]
    return "".join(lines.push([(part, False)]) for part in parts) + lines.flush()


def test_lines_are_broken_between_words() -> None:
    assert broken("one two three four", 10) == "one two\nthree\nfour"
    assert broken("    indented code stays", 17) == "    indented\ncode stays"
    assert broken("a  b\tc", 40) == "a  b    c"
    assert broken("one\n\n two", 40) == "one\n\n two"


def test_a_word_that_is_longer_than_a_line_is_broken_where_the_line_is_full() -> None:
    assert broken("an " + "x" * 20, 10) == "an\nxxxxxxxxx\nxxxxxxxxx\nxx"


def test_wide_characters_are_counted_as_wide_and_need_no_blanks() -> None:
    assert broken("你好世界你好", 9) == "你好世界\n你好"
    assert broken("ab你好", 6) == "ab你\n好"


@given(st.text(alphabet="ab  \n你é\u0301🙂\t-"), st.integers(4, 30))
def test_no_line_is_too_long_and_nothing_is_lost(text: str, columns: int) -> None:
    shown = broken(text, columns)
    assert all(cell_len(line) <= columns - 1 for line in shown.split("\n"))
    assert "".join(shown.split()) == "".join(text.split())
    assert shown == broken(text, columns, []), "whatever the pieces are"


def test_the_width_is_that_of_the_moment() -> None:
    width = [20]
    lines = Lines(lambda: width[0])
    first = lines.push([("one two three four five ", False)])
    width[0] = 8
    assert first + lines.push([("six seven eight ", False)]) == "one two three four\nfive\nsix\nseven\neight"


def test_what_was_drafted_is_painted_and_the_paint_ends_with_it() -> None:
    lines = Lines(lambda: 80, ("<", ">"))
    out = lines.push([("one t", False), ("wo", True), (" three ", True), ("four", False)]) + lines.flush()
    assert out == "one t<wo> <three> four"


# --- which characters were drafted


def marked(pieces: list[bytes], drafted: list[bool], text: str) -> list[tuple[str, bool]]:
    marks = Marks(lambda token: pieces[token])
    marks.heed(range(len(pieces)), drafted)
    return [*marks.marked(text)]


def test_marks_follow_the_tokens() -> None:
    assert marked([b"ab", b"cd", b"e"], [True, False, False], "abcde") == [("ab", True), ("cde", False)]
    half = "🙂".encode()
    assert marked([half[:2], half[2:], b"x"], [False, True, False], "🙂x") == [("🙂", True), ("x", False)]


def test_characters_that_the_text_lacks_are_passed_over() -> None:
    assert marked([b" one", b"<tool>", b" two"], [True, False, True], "one two") == [("one two", True)]
    assert marked([b"abc"], [True], "xyzabc") == [("xyz", False), ("abc", True)]


# --- Markdown that grows


def test_a_block_is_finished_where_a_whole_line_of_another_stands_behind_it() -> None:
    assert finished("one\ntwo\n") == []
    assert finished("one\n\ntwo") == []
    assert finished("one\n\ntwo\n") == ["one\n\n"]
    assert finished("1. one\n\n2") == [] == finished("1. one\n\n2. two\n")
    assert finished("```\na\n\nb\n") == []
    assert finished("```\na\n```\nb\n") == ["```\na\n```\n"]
    assert "".join(blocks(ANSWER)) == ANSWER and len(blocks(ANSWER)) == 6


@given(st.text(alphabet="ab \n#*-`>|1.", max_size=60))
def test_blocks_are_the_whole_text_and_only_ever_grow(text: str) -> None:
    parts = finished(text)
    assert text.startswith("".join(parts))
    for more in ("x", "\n", "\n\nx\n"):
        assert finished(text + more)[: len(parts)] == parts


def test_nothing_that_looks_like_html_or_a_reference_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Tty())
    shown = [
        line.text for line in Renderer(accepted=False).lines("vector<int> <b>x</b>\n[1]: http://x\n", [], 79)
    ]
    assert shown == ["vector<int> <b>x</b>", "[1]: http://x"]


class Tty(io.StringIO):
    """A terminal, as far as programs ask."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tty]:
    def made(columns: int = 60, rows: int = 20, **variables: str) -> Tty:
        for name in ("NO_COLOR", "XTERM_VERSION"):
            monkeypatch.delenv(name, raising=False)
        size = {"COLUMNS": str(columns), "LINES": str(rows)}
        for name, value in ({"TERM": "xterm-256color"} | size | variables).items():
            monkeypatch.setenv(name, value)
        stdout = Tty()
        monkeypatch.setattr(sys, "stdout", stdout)
        return stdout

    return made


def on_screen(printed: str, columns: int = 60, rows: int = 20) -> str:
    screen = pyte.HistoryScreen(columns, rows, history=5000)
    pyte.Stream(screen).feed(printed.replace("\n", "\r\n"))
    gone = ["".join(line[at].data for at in range(len(line))) for line in screen.history.top]
    return "\n".join(line.rstrip() for line in [*gone, *screen.display]).rstrip("\n") + "\n"


def feed(shown: Any, text: str, size: int) -> None:
    for start in range(0, len(text), size):
        shown.take([(text[start : start + size], False)], "1 token")
        shown._draw()  # not only ten times a second
    shown.end()


@pytest.mark.parametrize(("size", "rows"), [(1, 20), (7, 20), (5000, 20), (3, 6), (11, 4)])
def test_the_screen_is_the_same_whatever_the_pieces_and_the_height(
    terminal: Callable[..., Tty], size: int, rows: int
) -> None:
    stdout = terminal(rows=rows)
    feed(Live(accepted=False), ANSWER, size)
    assert on_screen(stdout.getvalue(), rows=rows) == RENDERED


def test_a_long_block_scrolls_away_while_it_grows(terminal: Callable[..., Tty]) -> None:
    stdout = terminal(rows=8)
    lines = [f"line {number}" for number in range(100)]
    shown = Live(accepted=False)
    shown.take([("```\n" + "\n".join(lines[:60]), False)], "")
    assert "line 50" in on_screen(stdout.getvalue(), rows=8) and "line 1\n" in on_screen(
        stdout.getvalue(), rows=8
    )
    feed(shown, "\n" + "\n".join(lines[60:]) + "\n```\n", 40)
    assert on_screen(stdout.getvalue(), rows=8).split("\n")[:-1] == [f"  {line}" for line in lines]


def test_a_narrower_window_has_broken_the_drawn_lines_where_terminals_do_so(
    terminal: Callable[..., Tty],
) -> None:
    for variables, up in (({}, 3), ({"XTERM_VERSION": "1"}, 1)):
        stdout = terminal(columns=60, **variables)
        shown = Live(accepted=False)
        shown.take([("word " * 20, False)], "")  # two lines, of 59 and 39 columns
        stdout.truncate(0)
        terminal(columns=30, **variables)
        sys.stdout = stdout
        shown._draw()
        assert stdout.getvalue().lstrip("\0").startswith(f"\r\x1b[{up}A\x1b[J")


def test_what_was_drafted_is_painted_in_rendered_text_too(terminal: Callable[..., Tty]) -> None:
    stdout = terminal()
    shown = Live(accepted=True)
    shown.take([("# The ", False), ("*river*", True), (" and\n\n- one ", False), ("`two`", True)], "")
    shown.end()
    screen = pyte.Screen(60, 20)
    pyte.Stream(screen).feed(stdout.getvalue().replace("\n", "\r\n"))
    green = [
        "".join(cell.data for cell in row.values() if cell.fg == "green") for row in screen.buffer.values()
    ]
    assert [text for text in green if text] == ["river", "two"]


@pytest.mark.parametrize("accepted", [False, True])
def test_without_colour_nothing_is_coloured(terminal: Callable[..., Tty], accepted: bool) -> None:
    stdout = terminal(NO_COLOR="1")
    shown = Live(accepted=accepted)
    shown.take([(ANSWER, True)], "1 token")
    shown.end()
    screen = pyte.HistoryScreen(60, 60)
    pyte.Stream(screen).feed(stdout.getvalue().replace("\n", "\r\n"))
    cells = [cell for row in screen.buffer.values() for cell in row.values()]
    assert {(cell.fg, cell.bg) for cell in cells} == {("default", "default")}
    assert any(cell.underscore for cell in cells if cell.data == "w") is accepted


def test_a_console_without_these_characters_gets_others(terminal: Callable[..., Tty]) -> None:
    stdout = terminal()
    stdout.encoding = "cp1252"
    feed(Live(accepted=False), "- one\n\n> two\n\n| a |\n|---|\n| b |\n", 9)
    assert on_screen(stdout.getvalue()) == " * one\n\n| two\n\n a\n -\n b\n"


def test_control_characters_of_an_answer_do_not_reach_the_screen(terminal: Callable[..., Tty]) -> None:
    stdout = terminal()
    shown = Live(accepted=False)
    shown.take([("a\x1b]0;title\x07\x9b2J", False)], "")
    shown.end()
    assert (
        "title" in stdout.getvalue() and "\x1b]0" not in stdout.getvalue() and "\x9b" not in stdout.getvalue()
    )


def test_a_view_fits_where_it_is_shown(terminal: Callable[..., Tty], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal()
    assert (
        type(view(markdown=True, accepted=False)) is Live
        and type(view(markdown=False, accepted=False)) is Worded
    )
    terminal(TERM="dumb")
    assert type(view(markdown=True, accepted=True)) is Worded and paint() == ("", "")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert type(view(markdown=True, accepted=True)) is Raw


def test_the_legend_is_broken_at_words_and_painted(
    terminal: Callable[..., Tty], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal(columns=40)
    monkeypatch.setattr(sys, "stderr", Tty())
    assert legend().startswith("\x1b[32mlike this\x1b[39m: drafted") and len(legend().split("\n")) == 3


# --- entries and the clipboard


def test_three_quotes_keep_an_entry_open_and_are_not_sent() -> None:
    assert is_open('"""') and is_open('"""a\nb') and not is_open('"""a\nb"""') and not is_open('say """')
    assert unquoted('"""\n/no command\n  x\n"""') == "/no command\n  x" and unquoted("plain") is None


def test_the_terminal_gets_what_no_program_can_copy(
    terminal: Callable[..., Tty], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "1")
    stdout = terminal()
    assert clipboard.copy("grüße").startswith("Gave 5 characters to the terminal's clipboard")
    assert stdout.getvalue() == f"\x1b]52;c;{base64.b64encode('grüße'.encode()).decode()}\x07"
    assert clipboard.copy("x" * 80_000).startswith("Not copied: ")


def test_a_program_of_this_machine_copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    program = tmp_path / "xclip"
    program.write_text(f'#!/bin/sh\ncat > "{tmp_path}/copied"\n')
    program.chmod(0o755)
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    if sys.platform != "win32":
        assert clipboard.copy("**raw**") == "Copied 7 characters with xclip."
        assert (tmp_path / "copied").read_text() == "**raw**"


# --- What a terminal must not get


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "<https://a.b/%1B%5D52;c;aGk=%07>",  # the parser decodes the address that it shows
        "<https://a.b/%C2%9B31m>",
        "# <https://a.b/%1b[2J>",
        "| <https://a.b/%1b> |\n|---|\n| &#27;]52;c;aGk=&#7; |",
        "&#27;]52;c;aGk=&#7; &#x9b;31m &#13; &#12;",
        "`&#27;` ![%1b](%1b) [a](<%1b>) <a%1b@b.c>",
    ],
)
def test_no_control_character_comes_out_of_markdown(text: str, accepted: bool) -> None:
    lines = Renderer(accepted=accepted).lines(text, [True] * len(text), 60)
    shown = "".join(re.sub(r"\x1b\[[0-9;]*m", "", line.text) for line in lines)
    assert lines and shown == printable(shown).replace("\r", "")
    assert all(line.cells == cell_len(re.sub(r"\x1b\[[0-9;]*m", "", line.text)) for line in lines)


def test_what_was_drafted_is_found_in_a_long_text_that_repeats_itself() -> None:
    item, count = "- an *item* (of many)\n", 200
    marks = ([False] * 6 + [True] * 4 + [False] * 12) * count
    lines = Renderer(accepted=True).lines(item * count, marks, 60)
    assert len(lines) == count and all("item" in line.text for line in lines)
    assert {line.text for line in lines[:-1]} == {lines[0].text} and "\x1b[3;32mitem" in lines[0].text
