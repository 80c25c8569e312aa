"""Lanes of a bench: answers as an application gets them, each on contexts of its own, a few rounds at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from localspec.answers.answering import answer_chunks, make_request
from localspec.answers.request import Chunk, Completion
from localspec.answers.ticket import Ticket
from localspec.compute.library import Library
from localspec.decoding.control import Controller
from localspec.decoding.params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.libraries import installed, libraries, reference
from localspec.engine.together import why_not_together
from localspec.engine.trust import known_verdict
from localspec.errors import DecodeCancelled, LocalspecError
from localspec.gguf.metadata import Metadata
from localspec.measure.interval import Segment
from localspec.measure.timing import Clock, Timing, inside


class AnswerLane:
    """One way of decoding: an `interleave.Lane` for each answer that it is asked for.

    engine: its own, such as a branch. controller: of the whole conversation, as in use.
    """

    def __init__(
        self,
        engine: Engine,
        controller: Controller,
        draft_tokens: int | str,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._engine, self._controller = engine, controller
        self._draft_tokens, self._clock = draft_tokens, clock
        self._chunks: Iterator[Chunk] = iter(())
        self._completion: Completion | None = None
        self._done, self._ttft, self._seconds = 0, 0.0, 0.0
        self._before = (0.0, 0.0)

    def forget(self) -> None:
        """Empty the cells: the next answer starts cold."""
        self._engine.forget()

    def ask(self, ids: Sequence[int], params: SamplingParams) -> None:
        """The next answer: to these ids, from cells that hold what they hold. Raises what `LLM.stream` raises."""
        request = make_request(self._engine, list(ids), self._draft_tokens, {"params": params})
        self._chunks = answer_chunks(self._engine, self._controller, request, Ticket())
        self._completion = None
        self._done, self._seconds = 0, 0.0

    @property
    def ended(self) -> bool:
        """Whether the answer is whole."""
        return self._completion is not None

    def begin(self) -> None:
        """Read the prompt and emit the first token."""
        started = self._clock()
        self._next()
        self._ttft = self._clock() - started
        self._done = 0
        self._before = inside(self._engine)

    def go_on(self, until: int) -> Segment | None:
        """Whole rounds until `until` tokens are there behind the first round, or the answer ends."""
        before, started = self._done, self._clock()
        while not self.ended and self._done < until:
            self._next()
        seconds = self._clock() - started
        self._seconds += seconds
        return Segment(self._done - before, seconds) if self._done > before else None

    def timing(self) -> Timing:
        """The whole answer, once it has ended."""
        assert self._completion is not None, "the answer has ended"
        target, draft = inside(self._engine)
        return Timing(
            completion=self._completion,
            ttft=self._ttft,
            seconds=self._seconds,
            target_seconds=target - self._before[0],
            draft_seconds=draft - self._before[1],
        )

    def _next(self) -> None:
        chunk = next(self._chunks)
        self._done += len(chunk.tokens)
        if chunk.completion is None:
            return
        self._completion = chunk.completion
        if chunk.completion.finish_reason == "cancelled":
            raise DecodeCancelled("The answer was cancelled.")
        stats = chunk.completion.stats
        self._done = stats.tokens - stats.first_tokens  # the end of generation too, which no chunk shows


@contextmanager
def other_engines(
    engine: Engine, others: Sequence[Library], notify: Callable[[str], None]
) -> Iterator[list[Engine]]:
    """The engine's target alone, loaded by each other library that can compute it; freed at the end of the block.

    notify: told of a library that is there and left out.
    """
    target, options = engine.target.weights.metadata, replace(engine.asked, no_draft=True)
    with ExitStack() as opened:
        found = []
        for library in others:
            if library.name == engine.library.name or library.refusal(target):
                continue
            try:
                other = Engine(target, None, options, library=library)
            except LocalspecError as error:
                notify(f"Plain decoding by {library.name} is not measured: {error.message}")
                continue
            opened.callback(other.close)
            found.append(other)
        yield found


def trusted_libraries(
    engine: Engine, notify: Callable[[str], None], home: Path | None = None
) -> list[Library]:
    """Those that run here and, as far as is known, compute the engine's target as the reference does.

    notify: told of one that is installed and left out. home: where verdicts are kept.
    """
    target, found = engine.target.weights.metadata, []
    for library in libraries():
        if (
            library is not reference()
            and installed(library)
            and (why := _distrust(target, engine, library, home))
        ):
            notify(f"Plain decoding by {library.name} is not measured: {why}.")
        elif library is reference() or installed(library):
            found.append(library)
    return found


def _distrust(target: Metadata, engine: Engine, library: Library, home: Path | None) -> str:
    """Why it shall not compute this file, or ""."""
    if reason := why_not_together(library, home):
        return reason.rstrip(".")
    found = known_verdict(target, engine.asked, library, home)
    return "" if found is None or found.trusted else found.figures
