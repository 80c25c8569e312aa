"""The child in which two libraries read the same text, one after the other, and their passes are timed."""

from __future__ import annotations

import json
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
from localspec.engine.memory import Load, check_memory
from localspec.engine.options import EngineOptions
from localspec.engine.trust import Comparison
from localspec.errors import LocalspecError, MemoryShort
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.text.prompt import text_prompt

CELLS = 24
"""Tokens before the rows that are compared; they are read in one wide pass."""
WIDTHS = {4: 3, 2: 3, 1: 6}
"""Passes behind them by width, 24 rows in all: their kernels differ, and their times say what drafting costs."""
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
    given = json.loads(order)
    notes = Path(given["notes"])
    found: list[dict[str, object]] = []

    def note(**facts: object) -> None:
        unfinished = notes.with_suffix(".part")
        unfinished.write_text(json.dumps({"found": found, **facts}), encoding="utf-8")
        unfinished.replace(notes)

    at = reference().key
    try:
        for file in given["files"]:
            metadata = read_metadata(Path(file["path"]))
            options = EngineOptions(**file["options"])
            size = CELLS + sum(width * count for width, count in WIDTHS.items())
            # Rows that are compared with none need no text.
            some = [index % metadata.n_vocab for index in range(size)]
            ids = some if file["alone"] else text_ids(metadata, size)
            readings = []
            for library in (
                (named(given["library"]),) if file["alone"] else (reference(), named(given["library"]))
            ):
                at = library.key
                note(by=at)
                readings.append(_read(library, metadata, options, ids))
            found.append(asdict(compared(*readings) if len(readings) > 1 else usable(*readings)))
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


def _read(library: Library, metadata: Metadata, options: EngineOptions, ids: Sequence[int]) -> Reading:
    """Load the file, read the text, free it. Raises what a load and a pass raise."""
    form = options.strict_for(metadata, library) if options.strict else options
    context_options = ContextOptions(
        n_ctx=2 * len(ids),
        n_outputs=max(WIDTHS),
        threads=form.threads,
        cache_type_k=form.cache_type_k,
        cache_type_v=form.cache_type_v,
    )
    if options.check_memory:
        check_memory([Load(metadata, context_options)])
    with ExitStack() as opened:
        weights = library.open_weights(metadata, gpu_layers=0, use_mmap=form.use_mmap, repack=form.repack)
        opened.callback(weights.close)
        context = weights.open_context(context_options)
        opened.callback(context.close)
        return _rows(library.key, context, ids)


def text_ids(metadata: Metadata, size: int) -> list[int]:
    """Ids of the text in this vocabulary, from the beginning again where it has fewer than `size`."""
    vocabulary = reference().open_vocabulary(metadata)
    try:
        ids = text_prompt(vocabulary, TEXT)
    finally:
        vocabulary.close()
    return list(islice(cycle(ids), size))


def _rows(
    key: str, context: Context, ids: Sequence[int], clock: Callable[[], float] = time.perf_counter
) -> Reading:
    session = Session(context)
    session.forward(ids[:CELLS], num_logits=0)
    rows: list[Logits] = []
    times: dict[int, list[float]] = {}
    for width, count in WIDTHS.items():
        for _ in range(count):
            place = len(session.tokens)
            started = clock()
            rows += session.forward(ids[place : place + width], num_logits=width)
            times.setdefault(width, []).append(clock() - started)
    return Reading(key, np.stack(rows), times)
