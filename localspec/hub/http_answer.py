"""One answer to a request for bytes: whether they are the file's, and where they begin."""

from __future__ import annotations

import re
from typing import Any

from localspec.errors import DownloadError, HashMismatch
from localspec.hub.hubfaults import HubFaults
from localspec.pairs.pair import ModelFile

CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
UNSATISFIED_RANGE = re.compile(r"bytes \*/(\d+)")
SHA256 = re.compile(r"[0-9a-f]{64}")
WEB_PAGES = ("text/html", "application/xhtml+xml")


class Broken(Exception):
    """The transfer broke in a way that may pass; the message says how."""


class NoRange(Broken):
    """The answer to a request for a part is not a plain part of the file: ask for the whole instead."""


class Answer:
    """The headers of one answer, after redirects; `response` is one of the HTTP library's."""

    def __init__(self, response: Any, file: ModelFile, faults: HubFaults) -> None:
        self._response = response
        self._status: int = response.status_code
        self._headers = response.headers
        self._file = file
        self._faults = faults

    def start(self, asked: int) -> int:
        """Where its bytes begin: at `asked`, or at 0 if the server ignored the range.

        Raises DownloadError if they are not the file's, Broken if another try may help.
        """
        self._check_status()
        for hop in (*self._response.history, self._response):
            check_facts(
                _plain(hop.headers.get("X-Linked-Etag")),
                _number(hop.headers.get("X-Linked-Size")),
                self._file,
                self._faults,
            )
        if self._headers.get("Content-Type", "").startswith(WEB_PAGES):
            raise self._faults.unreachable("sent a web page instead of the file (a login page or a proxy?)")
        return self._start_of_part(asked) if self._status == 206 else self._start_of_whole()

    def _check_status(self) -> None:
        if self._status == 429 or self._status >= 500:
            raise Broken(f"answered with server error {self._status}")
        if self._status == 416:
            match = UNSATISFIED_RANGE.fullmatch(self._headers.get("Content-Range", ""))
            if match is None or int(match[1]) == self._file.bytes:
                raise NoRange("refused to send a part of the file")
            raise wrong_size(int(match[1]), self._file, self._faults)
        if self._status not in (200, 206):
            raise self._faults.from_answer(self._status, self._headers)

    def _start_of_part(self, asked: int) -> int:
        if self._is_compressed:
            # The range counts compressed bytes.
            raise NoRange("sent a compressed part of the file")
        match = CONTENT_RANGE.fullmatch(self._headers.get("Content-Range", ""))
        if match is None or int(match[1]) != asked:
            raise self._faults.wrong(f"sent another range of {self._file.file} than was asked for")
        if match[2] not in ("*", str(self._file.bytes)):
            raise wrong_size(int(match[2]), self._file, self._faults)
        return asked

    def _start_of_whole(self) -> int:
        length = _number(self._headers.get("Content-Length"))
        if length is not None and not self._is_compressed and length != self._file.bytes:
            raise wrong_size(length, self._file, self._faults)
        return 0

    @property
    def _is_compressed(self) -> bool:
        encoding: str = self._headers.get("Content-Encoding", "identity")
        return encoding.lower() != "identity"


def check_facts(etag: str | None, size: int | None, file: ModelFile, faults: HubFaults) -> None:
    """Raises HashMismatch or DownloadError if what a hub says about a file does not match the file wanted."""
    if etag and SHA256.fullmatch(etag) and etag != file.sha256:
        error = faults.wrong(f"has another {file.file}, with sha256 {etag[:12]}…")
        facts = {**error.data, "expected": file.sha256, "actual": etag}
        raise HashMismatch(error.message, error.remedy, command=error.command, **facts)
    if size is not None and size != file.bytes:
        raise wrong_size(size, file, faults)


def wrong_size(size: int | None, file: ModelFile, faults: HubFaults) -> DownloadError:
    """The error for a file of another size; None means that more came than the file has."""
    had = "more bytes" if size is None else f"{size} bytes"
    return faults.wrong(f"has {had} under the name {file.file}, which has {file.bytes}")


def _plain(etag: str | None) -> str | None:
    return None if etag is None else etag.removeprefix("W/").strip('"')


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
