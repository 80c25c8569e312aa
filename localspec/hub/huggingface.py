"""The first source: a Hugging Face endpoint, by byte range into our own partial file."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from localspec.errors import DownloadError, HashMismatch, SourceUnreachable
from localspec.hub.catalogue import HubSource, ModelFile
from localspec.hub.hubfaults import LATER, HubFaults
from localspec.hub.partial import Partial
from localspec.hub.progress import Reporter, readable

if TYPE_CHECKING:
    from huggingface_hub.file_download import HfFileMetadata

PROBE_SECONDS = 5.0
PAUSE_SECONDS = 1.0
MAX_FAILURES = 3
CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
SHA256 = re.compile(r"[0-9a-f]{64}")

T = TypeVar("T")


class HubFetcher:
    """Fetches from the endpoint in HF_ENDPOINT (by default the public hub), with the user's token if any.

    An endpoint that cannot be reached is asked once in the fetcher's life.
    """

    def __init__(self) -> None:
        self._down: SourceUnreachable | None = None

    def fetch(self, file: ModelFile, source: HubSource, partial: Partial, report: Reporter) -> None:
        """Appends to `partial` until it has all bytes. Raises DownloadError."""
        if self._down is not None:
            raise self._down
        try:
            download = _Download(file, source, partial, report)
            download.probe()
        except SourceUnreachable as error:
            self._down = error
            raise
        download.run()


class _Broken(Exception):
    """The transfer broke in a way that may pass; the message says how."""


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

    def probe(self) -> None:
        """Asks once, and briefly, whether the endpoint is there and has these bytes."""
        found = self._metadata()
        if found.commit_hash is None:
            raise self.faults.unreachable("does not answer as a model hub does (a login page or a proxy?)")
        if found.etag and SHA256.fullmatch(found.etag) and found.etag != self.file.sha256:
            error = self.faults.wrong(f"has another {self.file.file}, with sha256 {found.etag[:12]}…")
            raise HashMismatch(
                error.message, error.remedy, **error.data, expected=self.file.sha256, actual=found.etag
            )
        if found.size is not None and found.size != self.file.bytes:
            raise self._wrong_size(found.size)

    def run(self) -> None:
        """Streams until the partial is complete. A broken transfer goes on where it broke, a few times."""
        best, failures = self.partial.size, 0
        while self.partial.size < self.file.bytes:
            try:
                self._stream()
            except _Broken as broken:
                # Only new ground counts: a server without ranges could break at the same place for ever.
                size = self.partial.size
                failures = 1 if size > best else failures + 1
                best = max(best, size)
                if failures > MAX_FAILURES:
                    where = f"at {readable(size)} of {readable(self.file.bytes)} of {self.file.file}"
                    raise self.faults.unreachable(f"{broken} {where}", LATER) from broken
                time.sleep(PAUSE_SECONDS * failures)

    def _metadata(self) -> HfFileMetadata:
        from huggingface_hub import get_hf_file_metadata

        def ask() -> HfFileMetadata:
            with _quiet():
                return get_hf_file_metadata(self.url, timeout=PROBE_SECONDS)

        try:
            return _within(PROBE_SECONDS, ask)
        except Exception as error:
            raise self.faults.from_exception(error) from error

    def _stream(self) -> None:
        from huggingface_hub import constants, get_session
        from huggingface_hub.errors import HfHubHTTPError

        # The HTTP library differs between versions of huggingface_hub; its own error class says which it is.
        transport_error: type[Exception] = HfHubHTTPError.__mro__[1]
        start = self.partial.size
        headers = self.headers | ({"Range": f"bytes={start}-"} if start else {})
        stall = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
        stream = get_session().stream("GET", self.url, headers=headers, timeout=stall, follow_redirects=True)
        try:
            with stream as response:
                self._check(response)
                self._write(response, start)
        except transport_error as error:
            raise _Broken(_how(error)) from error
        if self.partial.size < self.file.bytes:
            raise _Broken("closed the connection early")

    def _check(self, response: Any) -> None:
        from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined,unused-ignore]

        status = response.status_code
        if status == 429 or status >= 500:
            raise _Broken(f"answered with server error {status}")
        if status >= 400:
            response.read()
            try:
                hf_raise_for_status(response)
            except Exception as error:
                raise self.faults.from_exception(error) from error
        if response.headers.get("Content-Type", "").startswith("text/html"):
            raise self.faults.unreachable("sent a web page instead of the file (a login page or a proxy?)")

    def _write(self, response: Any, start: int) -> None:
        done = self._start_of(response, start)
        self.partial.truncate(done)
        with self.partial.append() as out:
            for chunk in response.iter_bytes():
                if done + len(chunk) > self.file.bytes:
                    raise self._wrong_size(None)
                out.write(chunk)
                done += len(chunk)
                self.report(done)

    def _start_of(self, response: Any, start: int) -> int:
        """Where the answer's bytes begin: at 0 if the server ignored the range."""
        if response.status_code == 206:
            match = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if match is None or int(match[1]) != start:
                raise self.faults.wrong(f"sent another range of {self.file.file} than was asked for")
            if match[2] not in ("*", str(self.file.bytes)):
                raise self._wrong_size(int(match[2]))
            return start
        length = response.headers.get("Content-Length")
        if (
            length is not None
            and "Content-Encoding" not in response.headers
            and int(length) != self.file.bytes
        ):
            raise self._wrong_size(int(length))
        return 0

    def _wrong_size(self, size: int | None) -> DownloadError:
        had = "more bytes" if size is None else f"{size} bytes"
        return self.faults.wrong(f"has {had} under the name {self.file.file}, which has {self.file.bytes}")


def _how(error: Exception) -> str:
    name = type(error).__name__
    if name == "ReadTimeout":
        return "stopped sending"
    return "cannot be reached" if name.startswith("Connect") else "broke the connection"


def _within(seconds: float, call: Callable[[], T]) -> T:
    """The call's result, or TimeoutError.

    Timeouts of sockets count per address and leave out the name look-up, so a firewall that drops packets can
    hold a call for minutes; the thread left behind ends with its socket.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="localspec-probe", daemon=True).start()
    return result.result(timeout=seconds)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps huggingface_hub's advice to anonymous users off the terminal."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
