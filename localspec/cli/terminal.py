"""The three standard streams: what may be read, what may be printed, and questions to the person."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

import click

from localspec.errors import InvalidRequest
from localspec.text.controls import printable

if TYPE_CHECKING:
    from rich.console import Console

LARGEST_INPUT = 64 << 20
"""Bytes; more than any context holds, and little enough for the memory."""
WAIT_SECONDS = 10.0
"""After so long it is said that standard input is waited for: who started the program may have left it open."""

LEAST_COLUMNS = 20
"""Beside a column of names, text has at least so many, or goes on below the names."""


def prepare_streams() -> None:
    """Make printing safe on consoles that cannot show every character: they get "?" instead."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def flushed_output() -> Iterator[None]:
    """Flush standard output after the block, while errors can still be reported."""
    try:
        yield
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()


def drop_output() -> bool:
    """Discard what failing streams still hold, so that the exit is quiet; returns whether standard output fails."""
    failing = _dropped(sys.stdout)
    _dropped(sys.stderr)
    return failing


def _dropped(stream: TextIO | None) -> bool:
    if stream is None or stream.closed:
        return False
    try:
        stream.flush()
    except OSError:
        with contextlib.suppress(OSError):  # a stream in memory has no descriptor
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
        return True
    return False


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person sits at the stream; a missing stream (`pythonw`) has nobody."""
    return stream is not None and not stream.closed and stream.isatty()


def can_ask() -> bool:
    """Whether a question on standard error can be answered on standard input."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def ask(question: str, *, default: bool) -> bool:
    """Ask on standard error; Enter means the default, end of input means no."""
    choices = "[Y/n]" if default else "[y/N]"
    while True:
        click.echo(f"{wrapped(f'{question} {choices}', columns_of(sys.stderr))} ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line:
            click.echo(err=True)
            return False
        answer = line.strip().lower()
        if not answer:
            return default
        if answer in ("y", "yes"):
            return True
        if answer in ("n", "no"):
            return False


def columns_of(stream: TextIO | None) -> int | None:
    """Columns of the terminal behind the stream, or None where nobody sits at it. COLUMNS goes before what it says."""
    if not is_terminal(stream):
        return None
    assert stream is not None
    given = os.environ.get("COLUMNS", "")
    if not (given.isdigit() and int(given)):
        with contextlib.suppress(OSError, ValueError):  # ValueError: a stream in memory has no descriptor
            return os.get_terminal_size(stream.fileno()).columns or None
    return shutil.get_terminal_size().columns


def wrapped(text: str, columns: int | None, hang: int = 0) -> str:
    """The text in lines of so many columns, broken at words; as it is where `columns` is None.

    hang: columns in front of the lines that go on. What is to be copied stays whole: a word longer than a line, and
    what stands in backticks, is left to the terminal.
    """
    if columns is None:
        return text
    return "\n".join(_broken(line, columns, hang) for line in text.split("\n"))


def _broken(line: str, columns: int, hang: int) -> str:
    if len(line) <= columns:
        return line
    whole = re.sub(r"`[^`]*`", lambda quoted: quoted[0].replace(" ", "\0"), line)
    lines = textwrap.wrap(
        whole,
        columns,
        subsequent_indent=" " * (hang if hang + LEAST_COLUMNS <= columns else 0),
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        expand_tabs=False,
    )
    return "\n".join(lines).replace("\0", " ")


_spinning: list[Console] = []
_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False}


def tell(text: str, hang: int = 0) -> None:
    """A sentence of the result on standard output, broken at words where that is a terminal; see `wrapped`."""
    click.echo(wrapped(_sentence(text), columns_of(sys.stdout), hang))


def say(text: str, *, dim: bool = False, hang: int = 0) -> None:
    """One line on standard error; in a narrow terminal it is broken at words, see `wrapped`.

    If that cannot be written, nothing is raised: an answer goes on without it.
    """
    with contextlib.suppress(OSError):
        text = wrapped(_sentence(text), columns_of(sys.stderr), hang)
        if _spinning:  # a plain line would land behind the spinner
            style = "dim" if dim and may_style() else None
            _spinning[-1].print(text, style=style, soft_wrap=True, **_PLAIN)
            return
        click.echo(styled(text, dim=True) if dim else text, err=True)


def _sentence(text: str) -> str:
    """Without what could overwrite its beginning: names of files may hold anything."""
    return printable(text).replace("\r", "\ufffd")


def may_style() -> bool:
    """Whether a terminal may get dim or coloured text: NO_COLOR (https://no-color.org) and a dumb one forbid it."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, **style: Any) -> str:
    """`click.style`, where that is wanted."""
    return click.style(text, **style) if may_style() else text


def write_answer(text: str) -> None:
    """A piece of an answer on standard output, at once. A terminal never gets control characters."""
    if sys.stdout is None:
        return
    sys.stdout.write(printable(text) if is_terminal(sys.stdout) else text)
    sys.stdout.flush()


def write_json(value: object) -> None:
    """One JSON value on standard output: one line, and for a person at a terminal as many as it takes to read it."""
    if not is_terminal(sys.stdout):
        click.echo(json.dumps(value))
        return
    text = json.dumps(value, indent=2)
    # Lists of numbers stay on one line. No text is touched: in JSON none holds a line break.
    click.echo(re.sub(r'\[\n[^\[\]{}"]*\]', lambda found: " ".join(found[0].split()), text))


def read_input() -> str:
    """Everything on standard input, as UTF-8 whatever the locale, without the last line break; "" where there is none.

    Raises `InvalidRequest` for what is no text, naming the byte at fault, and for too much of it.
    """
    return utf8_text("Standard input", _read_bytes())


def utf8_text(name: str, data: bytes) -> str:
    """The text of bytes, without a mark at the start and the last line break. Raises `InvalidRequest`, as above."""
    if len(data) > LARGEST_INPUT:
        raise InvalidRequest(f"{name} holds more than {LARGEST_INPUT >> 20} MiB.", "Give a part of it.")
    if b"\0" in data:
        raise InvalidRequest(
            f"{name} is no text: byte {data.index(0)} is NUL.",
            "Convert it to UTF-8 text first.",
            offset=data.index(0),
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{name} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}.",
            "Convert the text to UTF-8 first.",
            offset=error.start,
        ) from error
    return text.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")


def _read_bytes() -> bytes:
    """As many as are taken, and one more; none where standard input is closed, or open for writing only (nohup)."""
    if sys.stdin is None or sys.stdin.closed:
        return b""
    waiting = threading.Timer(
        WAIT_SECONDS,
        say,
        ["Waiting for the end of standard input, which is read too; < /dev/null gives none."],
    )
    waiting.daemon = True
    waiting.start()
    try:
        return sys.stdin.buffer.read(LARGEST_INPUT + 1)
    except OSError as error:
        if error.errno == errno.EBADF:
            return b""
        raise InvalidRequest(
            f"Standard input cannot be read: {error.strerror or error}.",
            "Give a file or a pipe, or /dev/null.",
        ) from error
    finally:
        waiting.cancel()


def checked_text(name: str, text: str, remedy: str = "Give some text.") -> str:
    """The text itself. Raises `InvalidRequest` when it is empty or holds bytes that are no UTF-8 (`name`).

    remedy: for an empty one.
    """
    if not text.strip():
        raise InvalidRequest(f"The {name} is empty.", remedy, name=name)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"The {name} is not valid UTF-8 at character {error.start}.",
            "Give it in UTF-8, or through standard input from a UTF-8 file.",
            name=name,
            offset=error.start,
        ) from error
    return text


@contextlib.contextmanager
def busy(message: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner on standard error while the block runs, where somebody can see it.

    The block gets a function that changes the message.
    """
    if not is_terminal(sys.stderr):
        yield lambda _message: None
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    with console.status(message) as status:
        _spinning.append(console)
        try:
            yield lambda changed: status.update(escape(printable(changed)))
        finally:
            _spinning.pop()
