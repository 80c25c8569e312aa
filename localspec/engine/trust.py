"""Whether a library computes a file as the reference does, and how fast: found out once, and kept.

Both read a short text in a child process, in turns: a file on which a library ends its process ends the child alone.
Their passes are timed on the way. Where memory cannot hold the weights twice, one reads after the other. A draft is
read by the library alone.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from localspec.compute.library import Library
from localspec.compute.state import weights_digest
from localspec.decoding.costs import CostTable
from localspec.engine.libraries import reference
from localspec.engine.options import EngineOptions, Notify
from localspec.errors import StateError
from localspec.gguf.metadata import Metadata
from localspec.store.measurements import Measurements, this_machine
from localspec.system.child import Ended, run_in_child
from localspec.system.home import default_home
from localspec.system.load_watch import check_cancelled, stage
from localspec.system.progress import Stage

FORMAT = 2
SECONDS = 600.0
"""How long a comparison may take: both libraries read the file's weights."""
MOST_DIVERGENCE = 0.02
"""Mean KL divergence in nats up to which rows count as alike; rounding alone makes some 0.003 of a 4-bit model."""
MOST_DIFFERING = 1 / 20
"""Share of rows whose likeliest token may be another one."""
MOST_TRIES = 3
"""Comparisons after which the times of one that was disturbed do: some machines are never quiet."""
_ENTRY = "localspec.engine.comparing:main"


@dataclass(frozen=True)
class Comparison:
    """How a library's rows differ from the reference's behind the same text.

    divergence: mean KL divergence, nats; largest: of any row. differing: rows with another likeliest token
    (beyond a TIE), of `rows`.
    seconds: of a pass by width, by `Library.key`. steady: whether nothing disturbed them. tries: comparisons so far.
    fault: why there is nothing to compare, in a sentence, or "".
    """

    divergence: float = 0.0
    largest: float = 0.0
    differing: int = 0
    rows: int = 0
    seconds: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    steady: bool = True
    fault: str = ""
    tries: int = 1

    @property
    def trusted(self) -> bool:
        """Whether they agree."""
        alike = self.divergence <= MOST_DIVERGENCE and self.differing <= MOST_DIFFERING * self.rows
        return not self.fault and self.rows > 0 and alike

    @property
    def alone(self) -> bool:
        """Whether the library read the file by itself, as it reads a draft: that says nothing of what it computes."""
        return not self.rows and not self.fault

    @property
    def settled(self) -> bool:
        """Whether its times stand; if not, they are taken anew where the machine is quiet."""
        return self.steady or self.tries >= MOST_TRIES

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
            int(data["tries"]),
        )


def known_comparison(
    target: Metadata, options: EngineOptions, library: Library, home: Path | None
) -> Comparison | None:
    """What an earlier comparison under these options found here, or None."""
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        found = _kept(home).find(_facts(target, options, library))
        return None if found is None else Comparison.from_dict(found)
    return None


def known_verdict(
    target: Metadata, options: EngineOptions, library: Library, home: Path | None
) -> Comparison | None:
    """The same, if it compared rows with the reference's; not where the file was only read as a draft."""
    found = known_comparison(target, options, library, home)
    return None if found is None or found.alone else found


@dataclass(frozen=True)
class Subject:
    """A file that is read in the child. alone: by the library only, as a draft is: the target checks what it says."""

    model: Metadata
    options: EngineOptions
    alone: bool = False


def compare(subjects: Sequence[Subject], library: Library, home: Path | None, notify: Notify) -> Comparison:
    """Compare them now (seconds, and the time of two loads), file by file in one child process, and keep what
    comes of it; returns what was found of the first.

    What says nothing of the library is not kept: memory that is short, and what the reference fails on too. Raises
    `LoadCancelled` where this load is cancelled.
    """
    first = subjects[0]
    stage(Stage.MEASURE, f"comparing {library.name}", 0.0, 0.0)
    beside = "" if first.alone else f" with {reference().name}"
    verb = "Trying" if first.alone else "Comparing"
    notify(f"{verb} {library.name}{beside} on {first.model.path.name}, once (some seconds).")
    try:
        ended, said = _tried(subjects, library)
    except OSError as error:  # no room for a few bytes, or no further process
        return Comparison(fault=f"they could not be compared ({error}).")
    found: list[Comparison] = []
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        for subject, facts in zip(subjects, said.get("found", ()), strict=False):
            before = known_comparison(subject.model, subject.options, library, home)
            found.append(replace(Comparison.from_dict(facts), tries=1 + (before.tries if before else 0)))
            _keep(subject, found[-1], library, home)
    if len(found) < len(subjects):
        last = ended.said.splitlines()[-1:] if ended.code else []
        how = f"{ended.how}{f': {last[0][-200:]}' if last else ''}"
        failed = Comparison(fault=said.get("fault") or f"a first try in a process of its own {how}.")
        if said.get("by") == library.key and not said.get("passing"):
            _keep(subjects[len(found)], failed, library, home)
        found.append(failed)
    return found[0]


def _keep(subject: Subject, found: Comparison, library: Library, home: Path | None) -> None:
    """What was compared as a target stays known where the file then drafts for another one."""
    if found.alone and known_verdict(subject.model, subject.options, library, home):
        return
    _kept(home).keep(_facts(subject.model, subject.options, library), asdict(found))


def _tried(subjects: Sequence[Subject], library: Library) -> tuple[Ended, dict[str, Any]]:
    """How the child ended, and what it wrote down."""
    with tempfile.TemporaryDirectory(prefix="localspec-compare-") as folder:
        notes = Path(folder) / "notes.json"
        files = [
            {
                "path": str(subject.model.path.absolute()),
                "options": asdict(subject.options),
                "alone": subject.alone,
            }
            for subject in subjects
        ]
        order = {"notes": str(notes), "files": files, "library": library.key}
        ended = run_in_child(_ENTRY, json.dumps(order), SECONDS, Path(folder), check_cancelled)
        said: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            said = json.loads(notes.read_text(encoding="utf-8"))
        return ended, said


def forget(target: Metadata, options: EngineOptions, library: Library, home: Path | None) -> None:
    """Let the next load compare again."""
    _kept(home).forget(_facts(target, options, library))


def _kept(home: Path | None) -> Measurements:
    return Measurements((home or default_home()) / "libraries", FORMAT)


def _facts(target: Metadata, options: EngineOptions, library: Library) -> dict[str, object]:
    """What the rows depend on, and which of the libraries is faster: more threads make both so."""
    return {
        "file": target.path.name,
        "bytes": target.size_bytes,
        "contents": _contents(target),
        "format": target.file_type,
        "builds": [reference().build, library.build],
        "repack": options.repack,
        "cache": [options.cache_type_k, options.cache_type_v],
        "strict": options.strict,
        "machine": this_machine(),
    }


def _contents(model: Metadata) -> list[object]:
    """What tells it from another file of its name and size: a fine-tune differs everywhere, and has its samples; a
    damaged copy may differ in one place, and was written at another time. Nothing of a file that is not here.
    """
    with suppress(OSError, StateError):
        return [weights_digest(model.path, model.size_bytes), model.path.stat().st_mtime_ns]
    return []
