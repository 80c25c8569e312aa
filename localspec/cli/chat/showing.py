"""A running answer on its way to the screen: its pieces, what was drafted of them, and how it goes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec.cli.chat.answer import Repetition, write_out
from localspec.cli.chat.figures import so_far
from localspec.cli.chat.pieces import Marks
from localspec.cli.chat.view import Raw, View, legend, view
from localspec.cli.terminal import busy, say, write_answer

if TYPE_CHECKING:
    from localspec.answers.request import Chunk, Completion
    from localspec.answers.stream import Start
    from localspec.llm import LLM

REPEATS = "[The answer repeats itself: Ctrl-C ends one, and -n at the start bounds each.]"
"""Said once: at a line break of the answer that runs, or under it."""


@dataclass
class Look:
    """How answers look at a terminal. markdown: rendered, or as it is. color: whether drafted text is painted."""

    markdown: bool = True
    color: bool = False
    explained: bool = False

    def view(self) -> View:
        """For the next answer; says once what the colour means."""
        chosen = view(markdown=self.markdown, accepted=self.color)
        if self.color and not self.explained and type(chosen) is not Raw:
            self.explained = True
            say_legend()
        return chosen


def say_legend() -> None:
    """What is painted how; the paint itself must get through."""
    import click

    with contextlib.suppress(OSError):
        click.echo(legend(), err=True)


class Showing:
    """One answer. watch_repetition: whether it is said that one only repeats itself."""

    def __init__(self, llm: LLM, look: Look, *, watch_repetition: bool) -> None:
        self._view = look.view()
        self._marks = Marks(lambda token: llm.token_bytes([token])) if look.color else None
        self._repetition = Repetition() if watch_repetition else None
        self._status = ""
        self._told = self._lost = False

    def run(self, start: Start, *, patient: bool, first: Callable[[], None] = lambda: None) -> Completion:
        """Show the answer to its end, as `write_out`. first: called before the first piece."""

        def write(text: str) -> None:
            first()
            self._write(text)

        try:
            completion = write_out(start, write, patient=patient, heed=self._heed, tick=self._tick)
        finally:
            self._on_screen(self._view.end)
        if type(self._view) is Raw and not completion.text.endswith("\n"):
            write_answer("\n")
        if self._repeats:
            say(REPEATS)
        return completion

    def _heed(self, chunk: Chunk) -> None:
        if self._repetition is not None:
            self._repetition.heed(chunk.tokens)
        if self._marks is not None and chunk.tokens:
            self._marks.heed(chunk.tokens, chunk.drafted or [False] * len(chunk.tokens))
        self._status = so_far(chunk.stats) or self._status

    def _write(self, text: str) -> None:
        pieces = [(text, False)] if self._marks is None else self._marks.marked(text)
        self._on_screen(lambda: self._view.take(pieces, self._status))
        if self._repeats and text.endswith("\n"):
            self._told = True
            self._view.note(REPEATS)

    def _tick(self) -> None:
        self._on_screen(self._view.tick)

    def _on_screen(self, show: Callable[[], None]) -> None:
        """A terminal that is gone stops the answer as Ctrl-C does: it is kept. What else fails is raised."""
        if self._lost:
            return
        try:
            show()
        except OSError:
            if type(self._view) is Raw:
                raise
            self._lost = True
            signal.raise_signal(signal.SIGINT)

    @property
    def _repeats(self) -> bool:
        """Whether it repeats itself, and that was not said yet."""
        return self._repetition is not None and self._repetition.found and not self._told


def shown(llm: LLM, look: Look, start: Start) -> Completion:
    """One answer of a conversation, with a spinner until its first word. Ctrl-C stops it, however often it comes."""
    showing = Showing(llm, look, watch_repetition=True)  # before the spinner, which takes standard output
    with contextlib.ExitStack() as waiting:
        waiting.enter_context(busy("reading"))
        return showing.run(start, patient=True, first=waiting.close)
