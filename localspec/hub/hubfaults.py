"""What a Hugging Face endpoint answered, as one of our errors: each fault has its own sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar

from localspec.errors import AccessDenied, DownloadError, FileMissing, SourceUnreachable
from localspec.hub.route import (
    certificate_fault,
    certificates_remedy,
    proxy_addresses,
    proxy_to,
    public,
    public_text,
)
from localspec.pairs.pair import HubSource

Fault = TypeVar("Fault", bound=DownloadError)

CONNECTION = "Check the connection and the proxy, or name a mirror in HF_ENDPOINT."
LATER = "Pull again later: what was fetched is kept."
UPGRADE = "Upgrade localspec."
UPGRADE_COMMAND = "Upgrade localspec, or choose another --source."


class HubFaults:
    """Makes the errors of one file at one endpoint.

    has_token: whether a token was sent; otherwise: what to do if the endpoint does not have the file.
    """

    def __init__(
        self, file: str, source: HubSource, endpoint: str, has_token: bool, otherwise: str = UPGRADE
    ) -> None:
        self._file = file
        self._source = source
        self._otherwise = otherwise
        self._endpoint = endpoint
        self._shown = public(endpoint)
        self._has_token = has_token

    def unreachable(self, fault: str, remedy: str = CONNECTION) -> SourceUnreachable:
        """The endpoint does not answer, or not as it should. fault: the sentence after its name."""
        return self._make(SourceUnreachable, f"Hugging Face at {self._shown} {fault}.", remedy)

    def no_hub(self) -> SourceUnreachable:
        """What answers there is not a model hub."""
        return self.unreachable("does not answer as a model hub does (a login page or a proxy?)")

    def wrong(self, fault: str) -> DownloadError:
        """The endpoint has something else under this name. fault: the sentence after its name."""
        message = f"Hugging Face at {self._shown} {fault}."
        return self._make(DownloadError, message, self._otherwise)

    def from_exception(self, error: Exception) -> DownloadError:
        """The error for any exception of huggingface_hub or its HTTP library."""
        from huggingface_hub import errors as hub

        if isinstance(error, (json.JSONDecodeError, KeyError, TypeError, AttributeError)):
            return self.no_hub()
        if isinstance(error, hub.HFValidationError):
            return self._missing(f"{self._source.repo} cannot be the name of a repository.")
        if isinstance(error, TimeoutError) or type(error).__name__.endswith("Timeout"):
            return self._no_way("does not answer in time")
        if isinstance(error, hub.OfflineModeIsEnabled):
            return self.unreachable(
                "may not be asked, because HF_HUB_OFFLINE is set", "Unset HF_HUB_OFFLINE."
            )
        if isinstance(error, hub.HfHubHTTPError):
            return self.from_answer(error.response.status_code, error.response.headers)
        return self.untrusted(error) or self._no_way(
            "cannot be reached", f" ({type(error).__name__}: {self._first_line(error)})"
        )

    def untrusted(self, error: Exception) -> SourceUnreachable | None:
        """The error for an exception that says that a certificate could not be verified; None for any other."""
        fault = certificate_fault(error, self._endpoint)
        return None if fault is None else self._make(SourceUnreachable, fault, certificates_remedy())

    def _no_way(self, fault: str, reason: str = "") -> SourceUnreachable:
        """No answer at all: where a proxy is between, it is the first to look at."""
        proxy = proxy_to(self._endpoint)
        if proxy is None:
            return self.unreachable(f"{fault}{reason}")
        return self.unreachable(f"{fault} through {proxy}{reason}", proxy.remedy)

    def from_answer(self, status: int, headers: Mapping[str, str]) -> DownloadError:
        """The error for an answer with a failure status. A hub gives the reason in headers, so no body need be read."""
        repo = self._source.repo
        code = headers.get("X-Error-Code")
        if code == "GatedRepo":
            return self._make(
                AccessDenied,
                f"The repository {repo} is gated: its licence must be accepted first.",
                f"Accept it at {self._shown}/{repo}, log in with `hf auth login`, and pull again.",
            )
        if code == "RevisionNotFound":
            return self._missing(f"The repository {repo} has no revision {self._source.revision}.")
        if code == "EntryNotFound":
            return self._missing(f"The repository {repo} has no file {self._file} at its pinned revision.")
        return self._from_status(status, code == "RepoNotFound")

    def _from_status(self, status: int, no_such_repo: bool) -> DownloadError:
        repo = self._source.repo
        # A hub also says 401 for a repository that is not there, to those who show no token.
        if status == 401 and self._has_token and not no_such_repo:
            return self._make(
                AccessDenied,
                f"Hugging Face at {self._shown} refuses the token: it is wrong or has expired.",
                "Log in again with `hf auth login`, or unset HF_TOKEN.",
            )
        if status in (401, 404):
            return self._missing(f"Hugging Face at {self._shown} has no public repository {repo}.")
        if status == 403:
            return self._make(
                AccessDenied,
                f"Hugging Face at {self._shown} forbids access to {repo}.",
                "Use a token that may read it, or ask whoever runs the proxy.",
            )
        proxy = proxy_to(self._endpoint)
        if status == 407 and proxy is not None:
            message = f"Hugging Face at {self._shown} cannot be reached: {proxy} wants a name and a password."
            return self._make(AccessDenied, message, proxy.remedy)
        if status == 429:
            return self.unreachable("turns requests away because there were too many", LATER)
        if status >= 500:
            return self.unreachable(f"answered with server error {status}", LATER)
        return self.wrong(f"answered with status {status} for {self._file}")

    def _missing(self, message: str) -> DownloadError:
        return self._make(FileMissing, message, self._otherwise)

    def _make(self, kind: type[Fault], message: str, remedy: str) -> Fault:
        command = UPGRADE_COMMAND if remedy == UPGRADE else ""
        return kind(message, remedy, command=command, file=self._file, source=HubSource.kind)

    def _first_line(self, error: Exception) -> str:
        line = (str(error).splitlines() or ["no details"])[0].rstrip(".")
        return public_text(line, self._endpoint, *proxy_addresses())
