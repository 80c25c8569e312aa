"""The metadata of a model on a hub, from the first bytes of its file: the weights stay where they are."""

from __future__ import annotations

import time
from pathlib import Path

from localspec.errors import DownloadError, ModelFileError
from localspec.gguf.metadata import Metadata, parse_metadata
from localspec.gguf.reader import HeaderIncomplete
from localspec.hub import huggingface
from localspec.hub.http_answer import Broken
from localspec.hub.hubfaults import LATER
from localspec.hub.hubfile import MAX_FAILURES, HubFile
from localspec.pairs.pair import HubSource, ModelFile

FIRST_BYTES = 4 << 20
"""A header with a vocabulary of 150 thousand tokens has some 6 MB."""
LONGEST = 128 << 20


def read_remote_metadata(file: ModelFile) -> Metadata:
    """What `read_metadata` would say of the file once it is here; its `path` is the file's name alone.

    Of a split model the first part is read, which has the header of the whole. Raises DownloadError if the file
    cannot be read, ModelFileError if it is no usable GGUF file.
    """
    first = file.pieces[0]
    sources = [source for source in first.sources if isinstance(source, HubSource)]
    if not sources:
        raise DownloadError(
            f"{first.file} cannot be looked at from afar: none of its sources is a model hub.",
            "Pull it first.",
            file=first.file,
            source=HubSource.kind,
        )
    head = RemoteHeader(HubFile(first, sources[0]))
    wanted = FIRST_BYTES
    while True:
        head.read_to(min(wanted, first.bytes))
        try:
            return parse_metadata(head.bytes, first.bytes, Path(first.file), file.bytes)
        except HeaderIncomplete:
            wanted *= 2
        if wanted > LONGEST:
            raise ModelFileError(
                f"{first.file} is not a usable GGUF file: its header has more than {LONGEST} bytes.",
                "Choose another file.",
                path=Path(first.file),
            )


class RemoteHeader:
    """The beginning of a file on a hub, as far as it has been read."""

    def __init__(self, remote: HubFile) -> None:
        self.bytes = b""
        self._remote = remote

    def read_to(self, length: int) -> None:
        """Reads on until `bytes` is at least `length` long. Raises DownloadError."""
        if not self.bytes:
            self._remote.probe()
        failures = 0
        while len(self.bytes) < length:
            try:
                self._read(length)
            except Broken as broken:
                failures += 1
                if failures > MAX_FAILURES:
                    where = f"in the header of {self._remote.file.file}"
                    raise self._remote.faults.unreachable(f"{broken} {where}", LATER) from broken
                time.sleep(huggingface.PAUSE_SECONDS * failures)

    def _read(self, length: int) -> None:
        with self._remote.reading(len(self.bytes), length) as (start, chunks):
            found = bytearray(self.bytes[:start])
            for chunk in chunks:
                found += chunk
                if len(found) >= length:
                    break
        if len(found) < length:
            raise Broken("closed the connection early")
        self.bytes = bytes(found[:length])
