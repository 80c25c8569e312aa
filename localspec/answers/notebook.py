"""An answer in a notebook: its text as it comes, what was drafted of it coloured, and its figures."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, Protocol

from localspec.answers.request import Chunk, Completion
from localspec.system.signals import in_main_thread
from localspec.text.controls import printable

INTERVAL = 0.1
"""Seconds between two drawings of an answer that is under way."""
DRAFTED = "background-color: rgba(64, 160, 96, 0.3)"
# In `$...$` of an answer a notebook would see formulas.
_BEGIN = (
    '<div class="tex2jax_ignore mathjax_ignore"><div style="white-space: pre-wrap; font-family: monospace">'
)
_LEGEND = f'<span style="{DRAFTED}">coloured</span>: drafted, and kept by the target'


class Stream(Protocol):
    """An `AnswerStream`."""

    completion: Completion | None

    @property
    def begun(self) -> bool: ...

    def __iter__(self) -> Iterator[Chunk]: ...

    def cancel(self) -> None: ...


def show(stream: Stream) -> None:
    """Read a stream to its end and show it meanwhile; one that was read before is shown as it ended.

    An interrupted cell cancels it, shows what there is, and is interrupted all the same.
    """
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    if stream.completion is not None:
        display(_bundle(completion_html(stream.completion), stream.completion.text), raw=True)
    elif getattr(get_ipython(), "kernel", None) is None:
        _print(stream)  # a terminal cannot draw again what it has drawn
    else:
        seen = _Seen(coloured=not stream.begun)
        _show_live(stream, seen, display(seen.bundle(), raw=True, display_id=True))


def _show_live(stream: Stream, seen: _Seen, handle: Any) -> None:
    drawn = time.monotonic()
    with _interrupts_cancel(stream):
        try:
            for chunk in stream:
                seen.add(chunk)
                if time.monotonic() - drawn >= INTERVAL:
                    handle.update(seen.bundle(), raw=True)
                    drawn = time.monotonic()
        finally:
            handle.update(seen.bundle(), raw=True)


@contextmanager
def _interrupts_cancel(stream: Stream) -> Iterator[None]:
    """An interrupt ends the answer, which is then read to its end, and is raised behind the block."""
    if not in_main_thread():
        yield
        return
    interrupted = threading.Event()

    def cancel(_signal: int, _frame: object) -> None:
        interrupted.set()
        stream.cancel()

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted.is_set():
        raise KeyboardInterrupt


def _print(stream: Stream) -> None:
    completion = None
    for chunk in stream:
        print(printable(chunk.text), end="", flush=True)
        completion = chunk.completion
    if completion is not None:
        print(f"\n\n{figures(completion)}")


class _Seen:
    """What was read of a stream by now.

    coloured: whether that is all of it from its beginning, so that places in its text are known.
    """

    def __init__(self, *, coloured: bool) -> None:
        self._coloured = coloured
        self._text, self._tokens = "", 0
        self._drafted: list[bool] = []
        self._ends: list[int] = []
        self._completion: Completion | None = None

    def add(self, chunk: Chunk) -> None:
        """The next chunk."""
        self._text += chunk.text
        self._tokens += len(chunk.tokens)
        if self._coloured:
            self._drafted += chunk.drafted
            self._ends += chunk.text_ends
        self._completion = chunk.completion or self._completion

    def bundle(self) -> dict[str, str]:
        """It by MIME type."""
        if self._completion is not None:
            return _bundle(completion_html(self._completion), self._completion.text)
        below = f"{self._tokens} tokens ..." if self._tokens else "reading the prompt ..."
        return _bundle(answer_html(self._text, self._drafted, self._ends, below), self._text)


def _bundle(html: str, text: str) -> dict[str, str]:
    return {"text/html": html, "text/plain": text}


def completion_html(completion: Completion) -> str:
    """A finished answer with its figures."""
    below = escape(figures(completion))
    if any(completion.drafted):
        below += f"<br>{_LEGEND}"
    return answer_html(completion.text, completion.drafted, completion.text_ends, below)


def answer_html(text: str, drafted: Sequence[bool], ends: Sequence[int], below: str) -> str:
    """A text, the drafted parts of it coloured. below: HTML for the line under it."""
    parts = (
        f'<span style="{DRAFTED}">{escape(part)}</span>' if marked else escape(part)
        for part, marked in _parts(text, drafted, ends)
    )
    return f"{_BEGIN}{''.join(parts)}</div><small>{below}</small></div>"


def _parts(text: str, drafted: Sequence[bool], ends: Sequence[int]) -> Iterator[tuple[str, bool]]:
    """The text in as few parts as there are changes between drafted and not."""
    start = end = 0
    marked = False
    for is_drafted, token_end in zip(drafted, ends, strict=False):
        if is_drafted is not marked:
            if end > start:
                yield text[start:end], marked
            start, marked = end, is_drafted
        end = min(max(token_end, end), len(text))
    if end > start:
        yield text[start:end], marked
    if text[end:]:
        yield text[end:], False


def figures(completion: Completion) -> str:
    """A line: tokens, speed, the gain over plain decoding, and how much of what was drafted stood."""
    stats = completion.stats
    parts = ["stopped"] if completion.finish_reason == "cancelled" else []
    parts.append("1 token" if stats.tokens == 1 else f"{stats.tokens} tokens")
    if stats.tokens_per_second:
        parts.append(f"{stats.tokens_per_second:.1f} tokens/s")
    if stats.speedup_estimate is not None:
        parts.append(f"about {stats.speedup_estimate:.2f}x plain")
    if stats.acceptance_rate is not None:
        share = f"acceptance rate {stats.acceptance_rate:.2f}"
        parts.append(f"{share} ({stats.accepted} of {stats.drafted} drafted tokens)")
    return ", ".join([*parts, f"drafting {completion.drafting}", *filter(None, [completion.notice])])
