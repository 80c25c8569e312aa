"""The store: the folder in which verified model files lie, named by their sha256."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from localspec.errors import HashMismatch, NotDownloaded, StoreError
from localspec.pairs.catalogue import ModelFile, Pair, pairs
from localspec.pairs.pins import Pins
from localspec.store.prepared import CUT_DOWN, PREPARED, PreparedDrafts, Source
from localspec.system.disk import CHANGE_HOME, disk_errors, own_bytes, sha256_of, sync, write_durably
from localspec.system.home import default_home, home_folder
from localspec.system.locks import locked
from localspec.system.partial import Partial
from localspec.system.progress import Reporter, Stage, readable

__all__ = ["Store", "default_home"]

FORMAT = 1


class Store:
    """Files by sha256 in one folder. Reading needs no write permission and makes nothing.

    home:  the folder; by default the environment variable LOCALSPEC_HOME, else the user's data folder.

    Raises StoreError if the folder cannot be used, or was written by a newer localspec.
    """

    def __init__(self, home: Path | None = None) -> None:
        self.home = default_home() if home is None else home_folder(home)
        self._check_format()

    def path(self, file: ModelFile) -> Path | None:
        """Where the file lies, here or where its owner keeps it, or None; of a split model its first part.

        Only the size is looked at.
        """
        return self.held(file) or self._own(file)

    def held(self, file: ModelFile) -> Path | None:
        """Where the file lies in this store, or None. Only verified files get this name."""
        paths = [self.place_of(piece) for piece in file.pieces]
        return paths[0] if all(map(_is_whole, file.pieces, paths)) else None

    def _own(self, file: ModelFile) -> Path | None:
        """Where all pieces lie in one folder outside the store."""
        for first in file.pieces[0].local_paths:
            paths = [first, *(first.with_name(piece.file) for piece in file.pieces[1:])]
            if all(map(_is_whole, file.pieces, paths)):
                return first
        return None

    def found(self, file: ModelFile) -> Path | None:
        """What lies under the file's final name, whatever it is, or where its owner keeps it.

        Only `check` knows whether it is the file.
        """
        path = self.place_of(file)
        return path if path.is_file() else self._own(file)

    def pair_paths(self, pair: Pair, *, with_draft: bool = True) -> tuple[Path, Path | None]:
        """Paths of target and draft (None if the pair has none, or it is not wanted).

        Raises NotDownloaded, or StoreError for a missing file that no download brings back.
        """
        files = pair.files if with_draft else (pair.target,)
        found = [self.path(file) for file in files]
        missing = [file for file, path in zip(files, found, strict=True) if path is None]
        if missing:
            self._refuse_lost(pair, missing)
            names = " and ".join(file.file for file in missing)
            size = readable(sum(file.bytes for file in missing))
            raise NotDownloaded(
                f"The pair {pair.name} is not complete on this disk: {names} missing ({size}).",
                f'Call `localspec.pull("{pair.name}")`.',
                command=f"Run `localspec pull {pair.name}`.",
                name=pair.name,
                missing=[file.file for file in missing],
            )
        target, draft = (*found, None)[:2]
        assert target is not None
        return target, draft

    def _refuse_lost(self, pair: Pair, missing: list[ModelFile]) -> None:
        """Raises StoreError for a missing file that existed only where its owner kept it: nothing can fetch it."""
        for piece in (piece for file in missing for piece in file.pieces if self.path(piece) is None):
            if piece.local_paths and len(piece.local_paths) == len(piece.sources):
                where = " or ".join(map(str, piece.local_paths))
                raise StoreError(
                    f"The pair {pair.name} is not complete: {where} is gone or has another size.",
                    "Put the file back.",
                    command=f"Put the file back, or remove the pair with `localspec rm {pair.name}`.",
                    path=where,
                    name=pair.name,
                )

    def installed(self) -> list[tuple[Pair, int]]:
        """The pairs and pinned references whose files are all here, with their bytes."""
        known = (*pairs(self.home), *Pins(self.home).all())
        return [(pair, pair.bytes) for pair in known if self._has(pair)]

    def remove(self, pair: Pair) -> int:
        """Removes the pair's files, left-overs and prepared drafts, not what another complete pair needs.

        Files that lie outside the store stay. Returns the bytes freed, not those that other
        hard links keep. Raises StoreError if a file is in use or being fetched.
        """
        shared = {
            file.sha256 for other, _ in self.installed() if other.name != pair.name for file in other.files
        }
        doomed = [file for file in pair.files if file.sha256 not in shared]
        freed = sum(self._remove(piece) for file in doomed for piece in file.pieces)
        return freed + sum(self._remove_prepared(file) for file in doomed)

    def _remove_prepared(self, file: ModelFile) -> int:
        own, freed = file.pieces[0].local_paths, 0
        for kind in (PREPARED, CUT_DOWN):
            made = PreparedDrafts(self.home, kind)
            sources = {record.source for record in made.records() if any(map(record.source.is_of, own))}
            freed += sum(made.remove(source) for source in {*sources, self._source(file)})
        return freed

    def partial(self, file: ModelFile) -> Partial:
        """What has been fetched of the file so far."""
        return Partial(self.home / "partial" / f"{file.sha256}.part", file.bytes)

    def prepare(self) -> None:
        """Makes the folders and writes the format version. Raises StoreError."""
        with disk_errors(self.home):
            for folder in ("files", "partial", "locks"):
                (self.home / folder).mkdir(parents=True, exist_ok=True)
            if not self._version_file.exists():
                self._write_format()

    @contextmanager
    def lock(self, file: ModelFile, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Holds the file's lock, which ends with the process however that ends.

        waiting:  called again and again while another process has the lock; None makes that a StoreError.
        """

        def busy() -> None:
            message = f"{file.file} is being downloaded by another process."
            raise StoreError(message, "Wait for it, or stop it.", path=str(self.place_of(file)))

        with locked(self.home / "locks" / f"{file.sha256}.lock", waiting or busy):
            yield

    def check(self, file: ModelFile, path: Path, report: Reporter) -> None:
        """Raises HashMismatch unless the sha256 of `path` is right; a wrong file is removed, unless it is a user's own.

        path: of a split model, its first part.
        """
        if file.parts:
            for part in file.parts:
                self.check(part, path.with_name(part.file), report)
            return
        actual = sha256_of(path, lambda done: report(done, Stage.VERIFY))
        if actual == file.sha256:
            return
        if path not in file.local_paths:
            path.unlink()
        raise HashMismatch(
            f"The bytes of {file.file} from {report.source} are not the file: "
            f"sha256 {actual[:12]}… instead of {file.sha256[:12]}….",
            "Pull again.",
            command="Pull again, or choose another --source.",
            file=file.file,
            source=report.source,
            expected=file.sha256,
            actual=actual,
        )

    def accept(self, file: ModelFile, fetched: Path, report: Reporter) -> Path:
        """Gives `fetched` its final name after `check`; returns the new path. Raises HashMismatch."""
        self.check(file, fetched, report)
        return self.keep(file, fetched)

    def keep(self, file: ModelFile, verified: Path) -> Path:
        """Gives `verified`, whose sha256 is known to be right, its final name; returns the new path."""
        path = self.place_of(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        # A hard link into the Hugging Face cache may be read-only; its bytes are long on the disk.
        with suppress(PermissionError):
            sync(verified)
        verified.replace(path)
        self.partial(file).discard()
        return path

    def _has(self, pair: Pair) -> bool:
        return all(self.path(file) is not None for file in pair.files)

    def place_of(self, file: ModelFile) -> Path:
        """Where the file, or the first part of a split model, lies in this store, or would."""
        piece = file.pieces[0]
        return self.home / "files" / (piece.folder or piece.sha256) / piece.file

    def _source(self, file: ModelFile) -> Source:
        return Source(str(self.place_of(file)), file.bytes, f"sha256:{file.sha256}")

    def _remove(self, file: ModelFile) -> int:
        path, partial = self.place_of(file), self.partial(file)
        if not path.exists() and not partial.leftovers:
            return 0
        with disk_errors(self.home), self.lock(file):
            freed = partial.size
            partial.discard()
            if path.exists():
                freed += own_bytes(path)
                path.unlink()
            with suppress(OSError):
                path.parent.rmdir()
        return freed

    @property
    def _version_file(self) -> Path:
        return self.home / "format"

    def _write_format(self) -> None:
        # Two first pulls at once: the second finds the file written.
        with locked(self.home / "locks" / "format.lock"):
            if not self._version_file.exists():
                write_durably(self._version_file, f"{FORMAT}\n")

    def _check_format(self) -> None:
        try:
            text = self._version_file.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(
                f"The store {self.home} cannot be read: {error}.", CHANGE_HOME, path=str(self.home)
            ) from error
        if not text.isdecimal() or int(text) > FORMAT:
            raise StoreError(
                f"The store {self.home} has format {text!r}; this localspec knows formats up to {FORMAT}.",
                "Upgrade localspec, or set LOCALSPEC_HOME to another folder.",
                path=str(self.home),
            )


def _is_whole(file: ModelFile, path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size == file.bytes
    except (OSError, ValueError) as error:  # ValueError: no path at all
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"The store cannot read {path}: {reason}.", CHANGE_HOME, path=str(path)) from error
