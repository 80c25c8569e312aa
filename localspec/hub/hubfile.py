"""One file of a repository as an endpoint has it: what is said of it, and its bytes by range."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from localspec.errors import DownloadError, HashMismatch
from localspec.hub import endpoint
from localspec.hub.pair import HubSource, ModelFile

if TYPE_CHECKING:
    from huggingface_hub.file_download import HfFileMetadata

MAX_FAILURES = 3
"""A transfer that breaks so often without getting further is given up."""
CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
SHA256 = re.compile(r"[0-9a-f]{64}")


class Broken(Exception):
    """The transfer broke in a way that may pass; the message says how."""


class HubFile:
    """A file at its pinned commit; `faults` makes its errors."""

    def __init__(self, file: ModelFile, source: HubSource) -> None:
        from huggingface_hub import hf_hub_url

        self.file = file
        self.faults = endpoint.faults_of(file.file, source)
        path = source.path or file.file
        self._url = hf_hub_url(source.repo, path, revision=source.revision, endpoint=endpoint.endpoint())
        self._headers = endpoint.headers()

    def probe(self) -> None:
        """Asks once, and briefly, whether the endpoint is there and has these bytes. Raises DownloadError."""
        found = endpoint.ask(self.faults, self._metadata)
        if found.commit_hash is None:
            raise self.faults.no_hub()
        if found.etag and SHA256.fullmatch(found.etag) and found.etag != self.file.sha256:
            error = self.faults.wrong(f"has another {self.file.file}, with sha256 {found.etag[:12]}…")
            raise HashMismatch(
                error.message, error.remedy, **error.data, expected=self.file.sha256, actual=found.etag
            )
        if found.size is not None and found.size != self.file.bytes:
            raise self.wrong_size(found.size)

    @contextmanager
    def reading(self, start: int, stop: int | None = None) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Bytes from `start` on, up to `stop` where the server minds: where they begin, and the chunks.

        They begin at 0 if the server ignored the range. Raises DownloadError, and Broken also inside the block.
        """
        from huggingface_hub import constants, get_session
        from huggingface_hub.errors import HfHubHTTPError

        # The HTTP library differs between versions of huggingface_hub; its own error class says which it is.
        transport_error: type[Exception] = HfHubHTTPError.__mro__[1]
        wanted = f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"
        headers = self._headers | ({"Range": wanted} if start or stop is not None else {})
        stall = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
        stream = get_session().stream("GET", self._url, headers=headers, timeout=stall, follow_redirects=True)
        try:
            with stream as response:
                self._check(response)
                yield self._start_of(response, start), response.iter_bytes()
        except transport_error as error:
            raise Broken(_how(error)) from error

    def wrong_size(self, size: int | None) -> DownloadError:
        """The error for a file of another size; None is one that is too long."""
        had = "more bytes" if size is None else f"{size} bytes"
        return self.faults.wrong(f"has {had} under the name {self.file.file}, which has {self.file.bytes}")

    def _metadata(self) -> HfFileMetadata:
        from huggingface_hub import get_hf_file_metadata

        return get_hf_file_metadata(self._url, timeout=endpoint.PROBE_SECONDS)

    def _check(self, response: Any) -> None:
        from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined,unused-ignore]

        status = response.status_code
        if status == 429 or status >= 500:
            raise Broken(f"answered with server error {status}")
        if status >= 400:
            response.read()
            try:
                hf_raise_for_status(response)
            except Exception as error:
                raise self.faults.from_exception(error) from error
        if response.headers.get("Content-Type", "").startswith("text/html"):
            raise self.faults.unreachable("sent a web page instead of the file (a login page or a proxy?)")

    def _start_of(self, response: Any, start: int) -> int:
        if response.status_code == 206:
            match = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if match is None or int(match[1]) != start:
                raise self.faults.wrong(f"sent another range of {self.file.file} than was asked for")
            if match[2] not in ("*", str(self.file.bytes)):
                raise self.wrong_size(int(match[2]))
            return start
        length = response.headers.get("Content-Length")
        encoded = "Content-Encoding" in response.headers
        if length is not None and not encoded and int(length) != self.file.bytes:
            raise self.wrong_size(int(length))
        return 0


def _how(error: Exception) -> str:
    name = type(error).__name__
    if name == "ReadTimeout":
        return "stopped sending"
    return "cannot be reached" if name.startswith("Connect") else "broke the connection"
