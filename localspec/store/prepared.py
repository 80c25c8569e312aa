"""Copies that draft: of a draft in a format that is faster here, and of a model without some of its layers."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from localspec.errors import StoreError
from localspec.pairs.pair import SPLIT
from localspec.system.disk import disk_errors, write_durably
from localspec.system.home import home_folder
from localspec.system.locks import locked

FORMAT = 1
PREPARED, CUT_DOWN = "prepared", "pruned"
"""Folders: drafts in another format, with what the trials of them found; models that were cut down to some layers."""
ORIGINAL = "original"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Source:
    """The draft that a copy was made from: its path, bytes, and what tells it from another file of that name.

    stamp: `sha256:…` for files of a store, which are named by it; `mtime_ns:…` for any other.
    """

    file: str
    bytes: int
    stamp: str

    @classmethod
    def of(cls, path: Path) -> Source:
        """The file as it is now. Raises OSError."""
        path = path.absolute()
        status = path.stat()
        sha256 = path.parent.name.removeprefix(SPLIT)
        in_store = path.parent.parent.name == "files" and _SHA256.fullmatch(sha256)
        stamp = f"sha256:{sha256}" if in_store else f"mtime_ns:{status.st_mtime_ns}"
        return cls(str(path), status.st_size, stamp)

    @property
    def key(self) -> str:
        """Name of its folder: the sha256 where that is known, so that it survives a move of the store."""
        kind, _, value = self.stamp.partition(":")
        if kind == "sha256":
            return value
        facts = json.dumps([self.file, self.bytes, self.stamp])
        return hashlib.sha256(facts.encode("utf-8", "surrogateescape")).hexdigest()[:24]

    def is_of(self, path: Path) -> bool:
        """Whether it is, or was, the file there; a file of a store also after the store has moved."""
        path = path.absolute()
        return self.file == str(path) or self.key == path.parent.name.removeprefix(SPLIT)

    def is_same(self, other: Source) -> bool:
        """Whether both are the same bytes, as far as the stamp tells."""
        return (self.bytes, self.stamp) == (other.bytes, other.stamp)


@dataclass(frozen=True)
class Trial:
    """One comparison of a draft and its copies.

    facts:   what the times depend on: machine, build, threads, repacking.
    seconds: per draft token, by format; "original" is the draft itself.
    chosen:  the format to draft with here.
    fault:   why no copy could be made, or "".
    settled: whether the choice stands; if not, the copies are kept for another trial.
    """

    facts: Mapping[str, object]
    seconds: Mapping[str, float]
    chosen: str = ORIGINAL
    fault: str = ""
    settled: bool = True


@dataclass(frozen=True)
class Record:
    """What is known of one draft. copies: bytes by format, or by the layers that are left."""

    source: Source
    copies: Mapping[str, int]
    trials: tuple[Trial, ...]

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Record:
        """Raises ValueError, KeyError, TypeError or AttributeError when `data` is not of that form."""
        if data["format"] != FORMAT:
            raise ValueError("another format")
        source, copies, trials = data["source"], data["copies"], data["trials"]
        if not (isinstance(source, dict) and isinstance(copies, dict) and isinstance(trials, list)):
            raise TypeError("not a record")
        return cls(
            Source(str(source["file"]), int(source["bytes"]), str(source["stamp"])),
            {str(name): int(size) for name, size in copies.items()},
            tuple(_trial(item) for item in trials),
        )


def _trial(data: Mapping[str, object]) -> Trial:
    facts, seconds = data["facts"], data["seconds"]
    if not isinstance(facts, dict) or not isinstance(seconds, dict):
        raise TypeError("not a trial")
    times = {str(name): float(value) for name, value in seconds.items()}
    return Trial(facts, times, str(data["chosen"]), str(data["fault"]), bool(data["settled"]))


class PreparedDrafts:
    """The folder `prepared`, or another, of a store: for each file a folder with its copies and `record.json`.

    Reading creates nothing. A record that is damaged, or about a file that has changed, counts as absent.
    """

    def __init__(self, home: Path, kind: str = PREPARED) -> None:
        self.home = home_folder(home)
        self.kind = kind
        self.folder = self.home / kind

    def path(self, source: Source, format_name: str) -> Path:
        """Where the copy in that format lies, or would."""
        stem = Path(source.file).stem[:48]
        return self.folder / source.key / f"{stem}.{format_name}.gguf"

    def copy(self, source: Source, format_name: str) -> Path | None:
        """The whole copy in that format, or None."""
        record = self.record(source)
        size = record.copies.get(format_name) if record else None
        path = self.path(source, format_name)
        with suppress(OSError):
            return path if size is not None and path.stat().st_size == size else None
        return None

    def record(self, source: Source) -> Record | None:
        """What is known of this very file, or None."""
        record = self._read(self.folder / source.key)
        return record if record is not None and record.source.is_same(source) else None

    def trial(self, source: Source, facts: Mapping[str, object]) -> Trial | None:
        """The settled trial under these facts, or None; also None if the copy it chose is gone."""
        record = self.record(source)
        for trial in record.trials if record else ():
            if trial.facts == facts:
                usable = trial.chosen == ORIGINAL or self.copy(source, trial.chosen) is not None
                return trial if usable and trial.settled else None
        return None

    def records(self) -> list[Record]:
        """All records, even of drafts that are gone, sorted by file name."""
        folders = self.folder.iterdir() if self.folder.is_dir() else ()
        found = [record for folder in folders if (record := self._read(folder)) is not None]
        return sorted(found, key=lambda record: (Path(record.source.file).name, record.source.file))

    @contextmanager
    def lock(self, source: Source) -> Iterator[None]:
        """Holds the draft's lock, which the system drops with the process, and makes its folder.

        Raises StoreError if another process has the lock or the folder cannot be written.
        """

        def busy() -> None:
            name = Path(source.file).name
            message = f"{name} is being prepared by another process."
            raise StoreError(message, "Wait for it, or stop it.", path=source.file)

        with disk_errors(self.home):
            for folder in (self.folder / source.key, self.home / "locks"):
                folder.mkdir(parents=True, exist_ok=True)
            with locked(self.home / "locks" / f"{self.kind}-{source.key}.lock", busy):
                yield

    def keep(self, source: Source, trial: Trial) -> None:
        """Records a trial, and removes copies that no trial wants, and left-overs. Call it with the lock held."""
        record = self.record(source)
        others = (old for old in record.trials if old.facts != trial.facts) if record else ()
        trials = (*others, trial)
        wanted = {item.chosen for item in trials}.union(
            *(item.seconds for item in trials if not item.settled)
        )
        paths = {name: self.path(source, name) for name in sorted(wanted - {ORIGINAL})}
        copies = {name: path.stat().st_size for name, path in paths.items() if path.is_file()}
        folder = self.folder / source.key
        for file in set(folder.iterdir()) - set(paths.values()):
            file.unlink(missing_ok=True)
        self._write(folder, Record(source, copies, trials))
        self._drop_replaced(source)

    def keep_copy(self, source: Source, name: str) -> None:
        """Records a copy that was made without a trial, and keeps the others. Call it with the lock held."""
        record = self.record(source)
        copies = {**(record.copies if record else {}), name: self.path(source, name).stat().st_size}
        self._write(self.folder / source.key, Record(source, copies, record.trials if record else ()))
        self._drop_replaced(source)

    def remove_copy(self, source: Source, name: str) -> int:
        """Removes one copy, and all there is of the source with the last; returns its bytes. Raises StoreError."""
        record = self._read(self.folder / source.key)
        if record is None or name not in record.copies:
            return 0
        if len(record.copies) == 1:
            return self.remove(source)
        with self.lock(source):
            self.path(source, name).unlink(missing_ok=True)
            left = {other: size for other, size in record.copies.items() if other != name}
            self._write(self.folder / source.key, Record(record.source, left, record.trials))
        return record.copies[name]

    def remove(self, source: Source) -> int:
        """Removes what was prepared from it; returns the bytes of the copies.

        Raises StoreError if the draft is just being prepared, or a copy is in use and the system does not let it go.
        """
        folder = self.folder / source.key
        if not folder.is_dir():
            return 0
        with self.lock(source):
            freed = sum(file.stat().st_size for file in folder.iterdir() if file.suffix != ".json")
            shutil.rmtree(folder)
        return freed

    def _drop_replaced(self, source: Source) -> None:
        """A file of this path had other bytes before: what was prepared from them is of no use."""
        for other in self.records():
            if other.source.file == source.file and other.source.key != source.key:
                with suppress(StoreError):
                    self.remove(other.source)

    def _read(self, folder: Path) -> Record | None:
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            record = Record.from_dict(json.loads((folder / "record.json").read_text(encoding="utf-8")))
            return record if record.source.key == folder.name else None
        return None

    def _write(self, folder: Path, record: Record) -> None:
        data = {
            "format": FORMAT,
            "source": asdict(record.source),
            "copies": dict(record.copies),
            "trials": [asdict(trial) for trial in record.trials],
        }
        write_durably(folder / "record.json", json.dumps(data, indent=1) + "\n")
