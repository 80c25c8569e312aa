"""One file of a hub repository: its facts as the endpoint states them, and its bytes by range."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from localspec.hub import endpoint
from localspec.hub.http_answer import Answer, Broken, NoRange, check_facts
from localspec.hub.pace import Pace
from localspec.hub.time_limit import within
from localspec.pairs.pair import HubSource, ModelFile

if TYPE_CHECKING:
    from huggingface_hub.file_download import HfFileMetadata

MAX_FAILURES = 3
"""A transfer that breaks more often than this without getting further is given up."""


class HubFile:
    """A file at its pinned commit; `faults` makes its errors."""

    def __init__(self, file: ModelFile, source: HubSource) -> None:
        from huggingface_hub import hf_hub_url

        self.file = file
        self.faults = endpoint.faults_of(file.file, source)
        path = source.path or file.file
        self._url = hf_hub_url(source.repo, path, revision=source.revision, endpoint=endpoint.endpoint())
        self._headers = endpoint.headers()
        self._ranges = True

    def probe(self) -> None:
        """Asks once, briefly, whether the endpoint is there and has these bytes. Raises DownloadError."""
        found = endpoint.ask(self.faults, self._metadata)
        if found.commit_hash is None:
            raise self.faults.no_hub()
        check_facts(found.etag, found.size, self.file, self.faults)

    @contextmanager
    def reading(self, start: int, stop: int | None = None) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Where the bytes begin, and their chunks: from `start` on and, if the server heeds it, only up to `stop`.

        They begin at 0 if the server ignored the range. Raises DownloadError or Broken; reading the
        chunks may raise Broken too.
        """
        start = start if self._ranges else 0
        with closing(self._open(start, stop)) as response:
            try:
                begins = Answer(response, self.file, self.faults).start(start)
            except NoRange:
                self._ranges = False
                raise
            yield begins, _chunks(response)

    def _open(self, start: int, stop: int | None) -> Any:
        from huggingface_hub import constants, get_session

        stall = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
        wanted = f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"
        ranged = self._ranges and (start or stop is not None)
        headers = self._headers | ({"Range": wanted} if ranged else {})
        client = get_session()
        request = client.build_request("GET", self._url, headers=headers, timeout=stall)

        def send() -> Any:
            return client.send(request, stream=True, follow_redirects=True)

        try:
            return within(3 * stall, send, late=lambda response: response.close())
        except Exception as error:
            untrusted = self.faults.untrusted(error)
            if untrusted is not None:  # another try would find the same certificate
                raise untrusted from error
            raise Broken(_how(error)) from error

    def _metadata(self) -> HfFileMetadata:
        from huggingface_hub import get_hf_file_metadata

        return get_hf_file_metadata(self._url, timeout=endpoint.PROBE_SECONDS, **endpoint.NAMED)


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
