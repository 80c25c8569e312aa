"""What was measured on this machine, kept on disk by the facts that it depends on."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localspec.system.disk import write_durably

Facts = dict[str, object]
_unwritten: dict[Path, tuple[str, int]] = {}
"""Text and time of what no disk took: it holds for this process."""


@dataclass(frozen=True)
class Measurement:
    """facts: what it depends on. result: JSON of whoever measured. written: when, in nanoseconds."""

    facts: Mapping[str, Any]
    result: Mapping[str, Any]
    written: int = field(compare=False)


class Measurements:
    """A cache, one file for each set of facts: what cannot be read is measured again, and what cannot be written holds
    for this process.

    format_: version of the results; files of other versions are ignored.
    """

    def __init__(self, folder: Path, format_: int) -> None:
        self._folder = folder
        self._format = format_

    def find(self, facts: Facts) -> Mapping[str, Any] | None:
        """The result for exactly these facts, or None."""
        found = self._read(self._path(facts))
        return found.result if found and found.facts == facts else None

    def keep(self, facts: Facts, result: Mapping[str, object]) -> None:
        """Write the result down. A read-only folder is no reason to fail: this process then remembers it."""
        path = self._path(facts)
        text = json.dumps({"format": self._format, "facts": facts, **result}, indent=1)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_durably(path, text)
        except OSError:
            _unwritten[path] = text, time.time_ns()
        else:
            _unwritten.pop(path, None)

    def forget(self, facts: Facts) -> None:
        """Let it be measured again."""
        _unwritten.pop(self._path(facts), None)
        with suppress(OSError):
            self._path(facts).unlink(missing_ok=True)

    def __iter__(self) -> Iterator[Measurement]:
        only_here = [path for path in [*_unwritten] if path.parent == self._folder]
        for path in dict.fromkeys([*self._folder.glob("*.json"), *only_here]):
            if found := self._read(path):
                yield found

    def _path(self, facts: Facts) -> Path:
        name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
        return self._folder / f"{name}.json"

    def _read(self, path: Path) -> Measurement | None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            text, written = _unwritten.get(path) or (
                path.read_text(encoding="utf-8"),
                path.stat().st_mtime_ns,
            )
            data = json.loads(text)
            if data["format"] == self._format:
                return Measurement(dict(data["facts"]), data, written)
        return None


def this_machine() -> list[object]:
    """Facts that tell machines apart, ready for JSON."""
    return [platform.node(), platform.machine(), platform.processor(), os.cpu_count()]
