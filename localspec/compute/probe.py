"""What compute libraries say of themselves when they are tried in a child process: a crash there ends the child alone.

The child writes down how far it has come, so that its end can be explained whatever that end was.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, TypeVar

from localspec.errors import BackendError
from localspec.system.child import Ended, run_in_child

T = TypeVar("T")


@dataclass(frozen=True)
class Device:
    """One that layers can run on. memory: (free, total) in bytes, 0 where it does not say."""

    name: str
    description: str
    memory: tuple[int, int]


@dataclass(frozen=True)
class Probe:
    """What became of the child.

    stage:    how far it came: "start", "load" (the library), "ask" (for its facts), "compute" or "done".
    version:  of the library's package, or None where there is none.
    error:    (sentence, remedy) of a library that Python could not use, or None.
    code:     exit code of the child, negative for a signal; None where the time was up.
    said:     the end of what it wrote to standard error.
    features: what the library was compiled for, e.g. {"AVX2": 1}, as llama.cpp spells it.
    backends: kinds of devices that are compiled in, e.g. ("CPU", "CUDA").
    lacks:    calls for prediction layers that it does not have, as a clause, or "".
    """

    stage: str = "start"
    version: str | None = None
    error: tuple[str, str] | None = None
    code: int | None = 0
    said: str = ""
    features: dict[str, int] = field(default_factory=dict)
    backends: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    lacks: str = ""

    @property
    def usable(self) -> bool:
        """Whether the library loaded and answered."""
        return self.stage == "done" and self.error is None and self.code == 0

    @property
    def how(self) -> str:
        """How the child ended, in words, as the end of "It ..."."""
        return Ended(self.code, self.said).how


def probe_in_child(
    entries: Sequence[str], seconds: float, check: Callable[[], None] = lambda: None
) -> list[Probe]:
    """Load libraries in one child process, in this order, and ask each for its facts.

    entries: `Library.probe_entry` of each. check: called all the while; what it raises ends the child.
    """
    with tempfile.TemporaryDirectory(prefix="localspec-probe-") as folder:
        notes = [str(Path(folder) / f"notes-{index}.json") for index in range(len(entries))]
        order = json.dumps([entries, notes])
        ended = run_in_child("localspec.compute.probe:main", order, seconds, Path(folder), check)
        return [_read(Path(path), ended) for path in notes]


def _read(notes: Path, ended: Ended) -> Probe:
    try:
        known: dict[str, Any] = json.loads(notes.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    return Probe(
        stage=known.get("stage", "start"),
        version=known.get("version"),
        error=tuple(known["error"]) if known.get("error") else None,
        code=ended.code,
        said=ended.said,
        features=known.get("features", {}),
        backends=tuple(known.get("backends", ())),
        devices=tuple(
            Device(item["name"], item["description"], (item["memory"][0], item["memory"][1]))
            for item in known.get("devices", ())
        ),
        lacks=known.get("lacks", ""),
    )


# In the child


def main(order: str) -> None:
    """The child: let every library write into its notes."""
    for entry, notes in zip(*json.loads(order), strict=True):
        module, _, name = entry.partition(":")
        getattr(import_module(module), name)(notes)


def write_notes(
    path: str, package: str, load: Callable[[], T], ask: Callable[[T], Iterable[dict[str, object]]]
) -> None:
    """What a `probe_entry` does: load the library as localspec does, and write down what it says of itself.

    ask: gives facts piece by piece, under the names of the fields of `Probe`.
    """
    notes = _Notes(Path(path))
    try:
        notes.add(stage="start", version=metadata.version(package))
    except metadata.PackageNotFoundError:
        notes.add(stage="start", version=None)
    notes.add(stage="load")
    try:
        library = load()
    except BackendError as error:
        notes.add(error=(error.message, error.command))
        return
    notes.add(stage="ask")
    for facts in ask(library):
        notes.add(**facts)
    notes.add(stage="done")


class _Notes:
    """Facts that are on the disk as soon as they are known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._facts: dict[str, object] = {}

    def add(self, **facts: object) -> None:
        self._facts.update(facts)
        unfinished = self._path.with_suffix(".part")
        unfinished.write_text(json.dumps(self._facts), encoding="utf-8")
        unfinished.replace(self._path)


def features_of(system_info: bytes) -> dict[str, int]:
    """`b"CPU : AVX2 = 1 | FMA = 1 | "` -> {"AVX2": 1, "FMA": 1}; what is of another form is left out."""
    text = system_info.decode("utf-8", "replace")
    parts = (item.rpartition(":")[2].partition("=") for item in text.split("|"))
    return {
        name.strip(): int(value)
        for name, sign, value in parts
        if sign and name.strip() and value.strip().isdecimal()
    }
