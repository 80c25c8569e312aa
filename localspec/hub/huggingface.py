"""The first source: a Hugging Face endpoint, by byte range into our own partial file."""

from __future__ import annotations

import time
from collections.abc import Iterator

from localspec.errors import SourceUnreachable
from localspec.hub.http_answer import Broken, wrong_size
from localspec.hub.hubfaults import LATER
from localspec.hub.hubfile import MAX_FAILURES, HubFile
from localspec.pairs.pair import HubSource, ModelFile
from localspec.system.partial import Partial
from localspec.system.progress import Reporter, readable

PAUSE_SECONDS = 1.0
# Bytes that a connection must bring before the count of failures starts again.
GROUND = 1 << 18


class HubFetcher:
    """Fetches from the endpoint in HF_ENDPOINT (by default the public hub), with the user's token if any.

    An endpoint that cannot be reached is asked once in the fetcher's life.
    """

    def __init__(self) -> None:
        self._down: SourceUnreachable | None = None

    def fetch(self, file: ModelFile, source: HubSource, partial: Partial, report: Reporter) -> bool:
        """Appends to `partial` until it has all bytes; returns whether they came in one piece. Raises DownloadError."""
        if self._down is not None:
            raise self._down
        try:
            remote = HubFile(file, source)
            remote.probe()
        except SourceUnreachable as error:
            self._down = error
            raise
        return _Download(remote, partial, report).run()


class _Download:
    """One file from one repository."""

    def __init__(self, remote: HubFile, partial: Partial, report: Reporter) -> None:
        self.remote = remote
        self.file = remote.file
        self.partial = partial
        self.report = report

    def run(self) -> bool:
        """Streams until the partial is complete. A broken transfer goes on where it broke, a few times."""
        whole, best, failures = self.partial.size == 0, self.partial.size, 0
        while self.partial.size < self.file.bytes:
            try:
                self._stream()
            except Broken as broken:
                # Only new ground counts: a server without ranges could break at the same place for ever, and one
                # that lets a few bytes through each time nearly so.
                size = self.partial.size
                whole = whole and size == 0
                if size - best >= GROUND:
                    best, failures = size, 0
                failures += 1
                if failures > MAX_FAILURES:
                    where = f"at {readable(size)} of {readable(self.file.bytes)} of {self.file.file}"
                    raise self.remote.faults.unreachable(f"{broken} {where}", LATER) from broken
                time.sleep(PAUSE_SECONDS * failures)
        return whole

    def _stream(self) -> None:
        with self.remote.reading(self.partial.size) as (start, chunks):
            self._write(start, chunks)
        if self.partial.size < self.file.bytes:
            raise Broken("closed the connection early")

    def _write(self, done: int, chunks: Iterator[bytes]) -> None:
        self.partial.truncate(done)
        with self.partial.append() as out:
            for chunk in chunks:
                if done + len(chunk) > self.file.bytes:
                    raise wrong_size(None, self.file, self.remote.faults)
                out.write(chunk)
                done += len(chunk)
                self.report(done)
