"""Whether a library computes a file as the reference does, and how fast: found out once, and kept.

Both read a short text in a child process, one after the other: a file on which a library ends its process ends the
child alone, and only one of them holds weights at a time. Their passes are timed on the way.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.compute.context_options import ContextOptions
from localspec.compute.library import Context, Library
from localspec.decoding.costs import CostTable
from localspec.decoding.sampling import Logits, kl_divergence
from localspec.decoding.session import Session
from localspec.engine.libraries import named, reference
from localspec.engine.memory import Load, check_memory
from localspec.engine.options import EngineOptions, Notify
from localspec.errors import LocalspecError, MemoryShort
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.store.measurements import Measurements, this_machine
from localspec.system.child import run_in_child
from localspec.system.cores import physical_cores
from localspec.system.home import default_home
from localspec.system.load_watch import check_cancelled, stage
from localspec.system.progress import Stage
from localspec.text.prompt import text_prompt

FORMAT = 1
SECONDS = 600.0
"""How long a comparison may take: both libraries read the file's weights."""
CELLS = 24
"""Tokens before the rows that are compared; they are read in one wide pass."""
WIDTHS = {4: 4, 1: 8}
"""Passes behind them by width, 24 rows in all: their kernels differ, and their times say what drafting costs."""
MOST_DIVERGENCE = 0.02
"""Mean KL divergence in nats up to which rows count as alike; rounding alone makes some 0.003 of a 4-bit model."""
MOST_DIFFERING = 1 / 20
"""Share of rows whose likeliest token may be another one."""
UNSTEADY = 1.5
"""Where the median time of equal passes is so many times the least, others were using the machine."""
TEXT = (
    "The harbour lay quiet when the ferry came in, forty minutes late, with eleven passengers and a crate of lemons. "
    'A program that counts them might begin with "def total(items):", add what each of them weighs, 0.12 kg or more, '
    "and return the sum; written by hand it is a column of figures and a line below it. Nobody at the pier was in a "
    "hurry, and the captain least of all."
)
_ENTRY = "localspec.engine.trust:main"


@dataclass(frozen=True)
class Comparison:
    """How a library's rows differ from the reference's behind the same text.

    divergence: mean KL divergence, nats; largest: of any row. differing: rows with another likeliest token, of `rows`.
    seconds: of a pass by width, by `Library.key`. steady: whether nothing disturbed them.
    fault: why there is nothing to compare, in a sentence, or "".
    """

    divergence: float = 0.0
    largest: float = 0.0
    differing: int = 0
    rows: int = 0
    seconds: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    steady: bool = True
    fault: str = ""

    @property
    def trusted(self) -> bool:
        """Whether they agree."""
        alike = self.divergence <= MOST_DIVERGENCE and self.differing <= MOST_DIFFERING * self.rows
        return not self.fault and self.rows > 0 and alike

    @property
    def figures(self) -> str:
        """What was found, as the end of a sentence."""
        if self.fault:
            return self.fault.rstrip(".")
        return (
            f"mean KL divergence {self.divergence:.2g}, another likeliest token in {self.differing} of "
            f"{self.rows} rows"
        )

    def costs(self, library: Library) -> CostTable | None:
        """What passes of the target cost with it, as far as they were timed."""
        seconds = self.seconds.get(library.key)
        return CostTable(seconds) if seconds else None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Comparison:
        """From JSON. Raises `KeyError`, `TypeError`, `ValueError` or `AttributeError` for another form."""
        seconds = {
            str(key): {int(width): float(value) for width, value in times.items()}
            for key, times in data["seconds"].items()
        }
        return cls(
            float(data["divergence"]),
            float(data["largest"]),
            int(data["differing"]),
            int(data["rows"]),
            seconds,
            bool(data["steady"]),
            str(data["fault"]),
        )


def known_comparison(
    target: Metadata, options: EngineOptions, library: Library, home: Path | None
) -> Comparison | None:
    """What an earlier comparison under these options found here, or None."""
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        found = _kept(home).find(_facts(target, options, library))
        return None if found is None else Comparison.from_dict(found)
    return None


def compare(
    target: Metadata, options: EngineOptions, library: Library, home: Path | None, notify: Notify
) -> Comparison:
    """Compare them now (seconds, and the time of two loads), and keep what comes of it.

    What says nothing of the library is not kept: memory that is short, and what the reference fails on too. Raises
    `LoadCancelled` where this load is cancelled.
    """
    name = target.path.name
    stage(Stage.MEASURE, f"comparing {library.name}", 0.0, 0.0)
    notify(f"Comparing {library.name} with {reference().name} on {name}, once (some seconds).")
    with tempfile.TemporaryDirectory(prefix="localspec-compare-") as folder:
        notes = Path(folder) / "notes.json"
        order = {
            "notes": str(notes),
            "target": str(target.path.absolute()),
            "options": asdict(options),
            "library": library.key,
        }
        ended = run_in_child(_ENTRY, json.dumps(order), SECONDS, Path(folder), check_cancelled)
        said: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            said = json.loads(notes.read_text(encoding="utf-8"))
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        found = Comparison.from_dict(said["found"])
        _kept(home).keep(_facts(target, options, library), asdict(found))
        return found
    last = ended.said.splitlines()[-1:] if ended.code else []
    how = f"{ended.how}{f': {last[0][-200:]}' if last else ''}"
    fault = said.get("fault") or f"a first try of {name} in a process of its own {how}."
    failed = Comparison(fault=fault)
    if said.get("by") == library.key and not said.get("passing"):
        _kept(home).keep(_facts(target, options, library), asdict(failed))
    return failed


def forget(target: Metadata, options: EngineOptions, library: Library, home: Path | None) -> None:
    """Let the next load compare again."""
    _kept(home).forget(_facts(target, options, library))


def _kept(home: Path | None) -> Measurements:
    return Measurements((home or default_home()) / "libraries", FORMAT)


def _facts(target: Metadata, options: EngineOptions, library: Library) -> dict[str, object]:
    """What the rows and the times depend on."""
    return {
        "file": target.path.name,
        "bytes": target.size_bytes,
        "format": target.file_type,
        "builds": [reference().build, library.build],
        "threads": options.threads or physical_cores(),
        "repack": options.repack,
        "cache": [options.cache_type_k, options.cache_type_v],
        "strict": options.strict,
        "machine": this_machine(),
    }


# In the child


def main(order: str) -> None:
    """The child: let both read the text, and write down how far it came and what was found."""
    given = json.loads(order)
    notes = Path(given["notes"])

    def note(**facts: object) -> None:
        unfinished = notes.with_suffix(".part")
        unfinished.write_text(json.dumps(facts), encoding="utf-8")
        unfinished.replace(notes)

    at = reference().key
    try:
        metadata = read_metadata(Path(given["target"]))
        options = EngineOptions(**given["options"])
        readings = []
        for library in (reference(), named(given["library"])):
            at = library.key
            note(by=at)
            readings.append(_read(library, metadata, options))
        note(found=asdict(compared(*readings)))
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
        differing=int((ours.rows.argmax(axis=1) != other.rows.argmax(axis=1)).sum()),
        rows=len(divergence),
        seconds=seconds,
        steady=all(
            statistics.median(times) <= UNSTEADY * min(times)
            for reading in (ours, other)
            for times in reading.times.values()
        ),
    )


def _least(times: Mapping[int, Sequence[float]]) -> dict[int, float]:
    return {width: min(samples) for width, samples in sorted(times.items())}


def _read(library: Library, metadata: Metadata, options: EngineOptions) -> Reading:
    """Load the file, read the text, free it. Raises what a load and a pass raise."""
    form = options.strict_for(metadata, library) if options.strict else options
    num_rows = sum(width * count for width, count in WIDTHS.items())
    size = CELLS + num_rows
    context_options = ContextOptions(
        n_ctx=2 * size,
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
        return _rows(library.key, context, text_ids(metadata, size))


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
