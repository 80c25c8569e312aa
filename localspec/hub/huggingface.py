"""The first source: a Hugging Face endpoint, by byte range into our own partial file."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from localspec.errors import SourceUnreachable
from localspec.hub.answer import Answer, Broken, NoRange, check_facts, wrong_size
from localspec.hub.catalogue import HubSource, ModelFile
from localspec.hub.hubfaults import LATER, HubFaults
from localspec.hub.pace import Pace
from localspec.hub.partial import Partial
from localspec.hub.progress import Reporter, readable
from localspec.hub.within import within

if TYPE_CHECKING:
    from huggingface_hub.file_download import HfFileMetadata

PROBE_SECONDS = 5.0
PAUSE_SECONDS = 1.0
MAX_FAILURES = 3
# What a connection must bring before the count of failures starts again.
GROUND = 1 << 18


class HubFetcher:
    """Fetches from the endpoint in HF_ENDPOINT (by default the public hub), with the user's token if any.

    An endpoint that cannot be reached is asked once in the fetcher's life.
    """

    def __init__(self) -> None:
        self._down: SourceUnreachable | None = None

    def fetch(self, file: ModelFile, source: HubSource, partial: Partial, report: Reporter) -> bool:
        """Appends to `partial` until it has all bytes; whether they came in one piece. Raises DownloadError."""
        if self._down is not None:
            raise self._down
        try:
            download = _Download(file, source, partial, report)
            download.probe()
        except SourceUnreachable as error:
            self._down = error
            raise
        return download.run()


class _Download:
    """One file from one repository."""

    def __init__(self, file: ModelFile, source: HubSource, partial: Partial, report: Reporter) -> None:
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined,unused-ignore]

        endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        self.file = file
        self.partial = partial
        self.report = report
        self.url = hf_hub_url(source.repo, file.file, revision=source.revision, endpoint=endpoint)
        # The bytes themselves are wanted: a compressed answer has no length and no ranges.
        self.headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        self.faults = HubFaults(file, source, endpoint, has_token="authorization" in self.headers)
        self.ranges = True

    def probe(self) -> None:
        """Asks once, and briefly, whether the endpoint is there and has these bytes."""
        found = self._metadata()
        if found.commit_hash is None:
            raise self.faults.unreachable("does not answer as a model hub does (a login page or a proxy?)")
        check_facts(found.etag, found.size, self.file, self.faults)

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
                    raise self.faults.unreachable(f"{broken} {where}", LATER) from broken
                time.sleep(PAUSE_SECONDS * failures)
        return whole

    def _metadata(self) -> HfFileMetadata:
        from huggingface_hub import get_hf_file_metadata

        def ask() -> HfFileMetadata:
            with _quiet():
                return get_hf_file_metadata(self.url, timeout=PROBE_SECONDS)

        try:
            return within(PROBE_SECONDS, ask)
        except Exception as error:
            raise self.faults.from_exception(error) from error

    def _stream(self) -> None:
        start = self.partial.size if self.ranges else 0
        with closing(self._open(start)) as response:
            try:
                begins = Answer(response, self.file, self.faults).start(start)
            except NoRange:
                self.ranges = False
                raise
            self._write(response, begins)
        if self.partial.size < self.file.bytes:
            raise Broken("closed the connection early")

    def _open(self, start: int) -> Any:
        from huggingface_hub import constants, get_session

        stall = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
        headers = self.headers | ({"Range": f"bytes={start}-"} if start else {})
        client = get_session()
        request = client.build_request("GET", self.url, headers=headers, timeout=stall)

        def send() -> Any:
            return client.send(request, stream=True, follow_redirects=True)

        try:
            return within(3 * stall, send, late=lambda response: response.close())
        except Exception as error:
            raise Broken(_how(error)) from error

    def _write(self, response: Any, done: int) -> None:
        self.partial.truncate(done)
        with self.partial.append() as out:
            for chunk in _chunks(response):
                if done + len(chunk) > self.file.bytes:
                    raise wrong_size(None, self.file, self.faults)
                out.write(chunk)
                done += len(chunk)
                self.report(done)


def _chunks(response: Any) -> Iterator[bytes]:
    pace = Pace()
    try:
        for chunk in response.iter_bytes():
            yield chunk
            if pace.is_lost(len(chunk)):
                raise Broken("sends next to nothing")
    except Broken:
        raise
    except Exception as error:
        # Of the HTTP library (which one differs between versions of huggingface_hub), or a RuntimeError: another
        # thread met a fault and closed the client that all of them share. Errors of the loop's body do not come here.
        raise Broken(_how(error)) from error


def _how(error: Exception) -> str:
    name = type(error).__name__
    if isinstance(error, TimeoutError):
        return "does not answer in time"
    if name == "ReadTimeout":
        return "stopped sending"
    if name == "TooManyRedirects":
        return "redirects in a circle"
    return "cannot be reached" if name.startswith("Connect") else "broke the connection"


class _Quiet:
    """Keeps huggingface_hub's advice to anonymous users off the terminal, while any thread wants that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._level = logging.NOTSET

    @contextmanager
    def __call__(self) -> Iterator[None]:
        logger = logging.getLogger("huggingface_hub")
        with self._lock:
            if self._depth == 0:
                self._level = logger.level
                logger.setLevel(logging.ERROR)
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if self._depth == 0:
                    logger.setLevel(self._level)


_quiet = _Quiet()
