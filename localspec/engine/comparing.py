"""The child in which two libraries read the same text, and their passes are timed."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localspec.compute.context_options import ContextOptions
from localspec.compute.library import Context, Library
from localspec.decoding.sampling import Logits, kl_divergence
from localspec.decoding.session import Session
from localspec.engine.libraries import named, reference
from localspec.engine.memory import Load, check_memory, memory_estimate
from localspec.engine.options import EngineOptions
from localspec.engine.trust import Comparison
from localspec.errors import LocalspecError, MemoryShort
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.text.prompt import text_prompt

CELLS = 72
"""Tokens before the rows that are compared, read in one pass as prompts are, for wide passes have kernels of their own:
those of ik_llama.cpp from 33 tokens on are wrong for Q4_1 on a Zen 5 with AVX-512, and right below that width.
More than 64, for a kernel that begins there. Of a mixture of experts each expert gets but a few of them."""
WIDTHS = {4: 3, 2: 3, 1: 6}
"""Passes behind them by width, 24 rows in all: their kernels differ, and their times say what drafting costs."""
SIZE = CELLS + sum(width * count for width, count in WIDTHS.items())
"""Tokens of the text."""
SETTLE = 0.01
"""Seconds after which the threads of another library have ended the loops in which they await their next pass."""
TIE = 0.3
"""Log-probabilities that are no further apart are a tie: the widths of passes alone move them by as much."""
UNSTEADY = 1.5
"""Where the median time of equal passes is so many times the least, others were using the machine."""
TEXT = (
    "The harbour lay quiet when the ferry came in, forty minutes late, with eleven passengers and a crate of lemons. "
    'A program that counts them might begin with "def total(items):", add what each of them weighs, 0.12 kg or more, '
    "and return the sum."
)
"""Words that could go on in many ways: where a model is sure of itself, distributions hardly differ."""


def main(order: str) -> None:
    """The child: let both read the text, file by file, and write down how far it came and what was found."""
    if os.name == "posix":
        os.environ["PATH"] = (
            os.devnull
        )  # ik_llama.cpp looks there for a debugger where it ends: that takes seconds
    given = json.loads(order)
    notes = Path(given["notes"])
    found: list[dict[str, object]] = []

    def note(**facts: object) -> None:
        unfinished = notes.with_suffix(".part")
        unfinished.write_text(json.dumps({"found": found, **facts}), encoding="utf-8")
        unfinished.replace(notes)

    at = ""

    def reach(library: Library) -> None:
        nonlocal at
        if library.key != at:
            at = library.key
            note(by=at)

    try:
        for file in given["files"]:
            reach(reference())
            subject = _Subject(read_metadata(Path(file["path"])), EngineOptions(**file["options"]), reach)
            library = named(given["library"])
            if file["alone"]:
                found.append(asdict(usable(*_read([library], subject, subject.any_ids()))))
                continue
            ids = text_ids(subject.metadata, SIZE)
            both = (reference(), library)
            # In turns: what slows the machine for a while slows both. One by one where memory cannot hold both.
            groups = [[*both]] if subject.fits(*both) else [[each] for each in both]
            readings = [reading for group in groups for reading in _read(group, subject, ids)]
            found.append(asdict(compared(*readings)))
        note()
    except LocalspecError as error:
        note(by=at, fault=error.message, passing=isinstance(error, MemoryShort))


@dataclass(frozen=True)
class Reading:
    """What a library made of the text. rows: raw logits (n, V). times: seconds of each pass, by width."""

    key: str
    rows: NDArray[np.float32]
    times: Mapping[int, Sequence[float]]


def compared(ours: Reading, other: Reading) -> Comparison:
    """How the second one's rows differ from the first one's."""
    seconds = {reading.key: _least(reading.times) for reading in (ours, other)}
    if ours.rows.shape != other.rows.shape or not np.isfinite(other.rows).all():
        return Comparison(fault="it computes logits that are no numbers.", seconds=seconds)
    divergence = kl_divergence(ours.rows, other.rows)
    return Comparison(
        divergence=float(divergence.mean()),
        largest=float(divergence.max()),
        differing=_differing(ours.rows, other.rows),
        rows=len(divergence),
        seconds=seconds,
        steady=_steady(ours) and _steady(other),
    )


def usable(reading: Reading) -> Comparison:
    """What is to be known of a file whose rows another one checks."""
    seconds, steady = {reading.key: _least(reading.times)}, _steady(reading)
    if not np.isfinite(reading.rows).all():
        return Comparison(fault="it computes logits that are no numbers.", seconds=seconds)
    return Comparison(seconds=seconds, steady=steady)


def _steady(reading: Reading) -> bool:
    return all(statistics.median(times) <= UNSTEADY * min(times) for times in reading.times.values())


def _differing(rows: NDArray[np.float32], others: NDArray[np.float32]) -> int:
    """How many of `others` have a likeliest token that is clearly not that of the row beside it; both (n, V)."""
    theirs = np.take_along_axis(rows, others.argmax(axis=1)[:, None], axis=1)[:, 0]
    return int((rows.max(axis=1) - theirs > TIE).sum())


def _least(times: Mapping[int, Sequence[float]]) -> dict[int, float]:
    return {width: min(samples) for width, samples in sorted(times.items())}


@dataclass(frozen=True)
class _Subject:
    """A file to be read. reach: told of each library before it does something with it."""

    metadata: Metadata
    options: EngineOptions
    reach: Callable[[Library], None]

    def any_ids(self) -> list[int]:
        """Rows that are compared with none need no text."""
        return [index % self.metadata.n_vocab for index in range(SIZE)]

    def form(self, library: Library) -> EngineOptions:
        """Its options with that library."""
        return self.options.strict_for(self.metadata, library) if self.options.strict else self.options

    def context(self, library: Library) -> ContextOptions:
        """Of a context that holds the text."""
        form = self.form(library)
        return ContextOptions(
            n_ctx=2 * SIZE,
            n_outputs=max(WIDTHS),
            threads=form.threads,
            cache_type_k=form.cache_type_k,
            cache_type_v=form.cache_type_v,
        )

    def fits(self, *libraries: Library) -> bool:
        """Whether memory holds the file once for each of them."""
        return memory_estimate([Load(self.metadata, self.context(library)) for library in libraries]).fits


def _read(libraries: Sequence[Library], subject: _Subject, ids: Sequence[int]) -> list[Reading]:
    """Load the file with each, read the text in turns, free it. Raises what a load and a pass raise."""
    with ExitStack() as opened:
        contexts: list[tuple[Library, Context]] = []
        for library in libraries:
            subject.reach(library)
            if subject.options.check_memory:
                check_memory([Load(subject.metadata, subject.context(library))])
            form = subject.form(library)
            weights = library.open_weights(
                subject.metadata, gpu_layers=0, use_mmap=form.use_mmap, repack=form.repack
            )
            opened.callback(weights.close)
            context = weights.open_context(subject.context(library))
            opened.callback(context.close)
            contexts.append((library, context))
        return _rows(contexts, subject.reach, ids)


def text_ids(metadata: Metadata, size: int) -> list[int]:
    """Ids of the text in this vocabulary, from the beginning again where it has fewer than `size`."""
    vocabulary = reference().open_vocabulary(metadata)
    try:
        ids = text_prompt(vocabulary, TEXT)
    finally:
        vocabulary.close()
    return list(islice(cycle(ids), size))


def _rows(
    contexts: Sequence[tuple[Library, Context]],
    reach: Callable[[Library], None],
    ids: Sequence[int],
    clock: Callable[[], float] = time.perf_counter,
) -> list[Reading]:
    """What each makes of the text, pass by pass in turns."""
    sessions = [Session(context) for _, context in contexts]
    rows: list[list[Logits]] = [[] for _ in contexts]
    times: list[dict[int, list[float]]] = [{} for _ in contexts]
    passes = [width for width, count in WIDTHS.items() for _ in range(count)]
    for width in (0, *passes):
        for index, session in enumerate(sessions):
            reach(contexts[index][0])
            if not width:
                session.forward(ids[:CELLS], num_logits=0)
                continue
            place = len(session.tokens)
            if len(sessions) > 1:
                time.sleep(SETTLE)
            started = clock()
            rows[index] += session.forward(ids[place : place + width], num_logits=width)
            times[index].setdefault(width, []).append(clock() - started)
    return [
        Reading(library.key, np.stack(rows[index]), times[index])
        for index, (library, _) in enumerate(contexts)
    ]
