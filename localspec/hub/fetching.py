"""`pull`: both files of a pair on the disk, verified, from whichever source has them."""

from __future__ import annotations

from functools import partial as bind
from pathlib import Path

from localspec.errors import DownloadError, FileMissing, HashMismatch, InvalidRequest, OfflineError
from localspec.hub.huggingface import HubFetcher
from localspec.hub.pypi import WheelFetcher
from localspec.pairs.catalogue import HubSource, LocalSource, ModelFile, Pair, Source, WheelSource
from localspec.store.hfcache import adopt
from localspec.store.store import Store
from localspec.system.disk import disk_errors, require_room
from localspec.system.progress import Progress, ProgressCallback, Reporter, Stage

__all__ = ["SOURCES", "Progress", "pull"]

SOURCES = ("auto", HubSource.kind, WheelSource.kind)


def pull(
    pair: Pair,
    *,
    store: Store,
    source: str = "auto",
    offline: bool = False,
    progress: ProgressCallback | None = None,
) -> tuple[Path, Path | None]:
    """Paths of target and draft, after fetching what is missing.

    source:    "auto" tries the sources in the order of the pair file; "huggingface" or "pypi" only that one.
    offline:   use what is on this disk (store, left-overs, Hugging Face cache), open no connection.
    progress:  hears about every file; an exception it raises ends the pull and passes to the caller.

    Stopped at any moment, the next call resumes. Files already there are verified again, without the network,
    and fetched anew if they are damaged.
    Raises DownloadError and its kinds (the message says which file is missing and which is there), DiskFull,
    StoreError.
    """
    if source not in SOURCES:
        message = f"There is no source {source!r}."
        raise InvalidRequest(message, f"Known sources: {', '.join(SOURCES)}.", name="source", value=source)
    store.prepare()
    with disk_errors(store.home):
        _Pull(pair, store, source, offline, progress).run()
    return store.pair_paths(pair)


class _Pull:
    """One call of `pull`."""

    def __init__(
        self, pair: Pair, store: Store, source: str, offline: bool, progress: ProgressCallback | None
    ) -> None:
        self.pair = pair
        self.store = store
        self.source = source
        self.offline = offline
        self.reports = {file: Reporter(file.file, file.bytes, progress) for file in pair.pieces}
        self.damaged: dict[ModelFile, str] = {}
        self.hub = HubFetcher()
        self.wheels = WheelFetcher()

    def run(self) -> None:
        missing = [file for file in self.pair.pieces if not self._settle(file)]
        if missing and not self.offline:
            require_room(self.store.home, sum(self._needs(file) for file in missing))
        for file in missing:
            try:
                self._fetch(file)
            except DownloadError as error:
                raise self._account(error) from error

    def _settle(self, file: ModelFile) -> bool:
        """Whether the file is there and right, or could be made so from this disk."""
        report = self.reports[file]
        with self.store.lock(file, bind(self._waiting, file)):
            if not (
                self._verified(file, report) or self._finish(file, report) or adopt(file, self.store, report)
            ):
                return False
        report.ready()
        return True

    def _verified(self, file: ModelFile, report: Reporter) -> bool:
        path = self.store.found(file)
        if path is None:
            return False
        try:
            self.store.check(file, path, report)
        except HashMismatch as mismatch:
            if path not in file.local_paths:
                self.damaged[file] = str(mismatch.actual)
                report(file.bytes, Stage.DAMAGED)
            return False
        return True

    def _finish(self, file: ModelFile, report: Reporter) -> bool:
        """A partial may be complete: a pull that was stopped while hashing."""
        partial = self.store.partial(file)
        partial.repair()
        if partial.size < file.bytes:
            return False
        try:
            self.store.accept(file, partial.path, report)
        except HashMismatch:
            return False
        return True

    def _needs(self, file: ModelFile) -> int:
        """Bytes still to come, and room for one wheel beside them."""
        parts = [source.parts for source in self._sources(file) if isinstance(source, WheelSource)]
        return file.bytes - self.store.partial(file).size + max((file.bytes // n for n in parts), default=0)

    def _fetch(self, file: ModelFile) -> None:
        report = self.reports[file]
        with self.store.lock(file, bind(self._waiting, file)):
            # Another process may have fetched it while this one waited.
            if self.store.held(file) is None:
                self._fetch_from_any(file, report)
        report.ready()

    def _fetch_from_any(self, file: ModelFile, report: Reporter) -> None:
        errors: list[DownloadError] = []
        for source in self._sources(file):
            report.source = source.kind
            try:
                return self._fetch_from(file, source, report)
            except DownloadError as error:
                errors.append(error)
        raise _join(file, errors, self.source, self.offline)

    def _fetch_from(self, file: ModelFile, source: Source, report: Reporter) -> None:
        partial = self.store.partial(file)
        whole = self._append(file, source, report)
        try:
            self.store.accept(file, partial.path, report)
        except HashMismatch:
            if whole:
                raise
            # The fault may lie in what an earlier run left, or between two pieces: one try from the first byte.
            self._append(file, source, report)
            self.store.accept(file, partial.path, report)

    def _append(self, file: ModelFile, source: Source, report: Reporter) -> bool:
        """Completes the partial; returns whether its bytes came in one piece."""
        partial = self.store.partial(file)
        if isinstance(source, LocalSource):
            raise _lost(file, source)
        if isinstance(source, HubSource):
            return self.hub.fetch(file, source, partial, report)
        return self.wheels.fetch(file, source, partial, report)

    def _sources(self, file: ModelFile) -> list[Source]:
        def usable(source: Source) -> bool:
            allowed = not self.offline and self.source in ("auto", source.kind)
            return allowed or isinstance(source, LocalSource)

        return [source for source in file.sources if usable(source)]

    def _waiting(self, file: ModelFile) -> None:
        report = self.reports[file]
        report.source = "another process"
        report(self.store.partial(file).size)

    def _account(self, error: DownloadError) -> DownloadError:
        here = [file.file for file in self.pair.pieces if self.store.path(file) is not None]
        missing = [file.file for file in self.pair.pieces if self.store.path(file) is None]
        missing = missing or [str(error.data["file"])]  # it is there, but no longer the file it was
        here = [name for name in here if name not in missing]
        there = f"; {' and '.join(here)} {'is' if len(here) == 1 else 'are'} there" if here else ""
        account = f"The pair {self.pair.name} is not complete: {' and '.join(missing)} missing{there}."
        for file, actual in self.damaged.items():
            if file.file in missing:
                account += (
                    f" The {file.file} that lay here was damaged (sha256 {actual[:12]}…) and is removed."
                )
        message = f"{account} {error.message}"
        return error.with_message(message, pair=self.pair.name, missing=missing, present=here)


def _lost(file: ModelFile, source: LocalSource) -> FileMissing:
    """The error for a file that was looked at before: it is gone, or no longer the one that was added."""
    where = Path(source.path)
    fault = "is no longer the file that was added" if where.is_file() else "is gone"
    return FileMissing(
        f"{where} {fault}.", "Put the file back, or add it again.", file=file.file, source=source.kind
    )


def _join(file: ModelFile, errors: list[DownloadError], source: str, offline: bool) -> DownloadError:
    """One error for a file that no source gave: one sentence per source."""
    if offline and not errors:
        return OfflineError(
            f"{file.file} is not on this disk, and offline forbids the network.",
            "Pull without offline.",
            command="Pull without --offline.",
            file=file.file,
            source="",
        )
    if not errors:
        return DownloadError(
            f"{file.file} is not offered by the source {source}.",
            'Use source="auto".',
            command="Use --source auto.",
            file=file.file,
            source=source,
        )
    if len(errors) == 1:
        return errors[0]
    kinds = {type(error) for error in errors}
    kind = kinds.pop() if len(kinds) == 1 else DownloadError
    remedy = " ".join(dict.fromkeys(error.remedy for error in errors if error.remedy))
    command = " ".join(dict.fromkeys(error.command for error in errors if error.command))
    message = " ".join(error.message for error in errors)
    return kind(message, remedy, command=command, file=file.file, source=source, errors=errors)
