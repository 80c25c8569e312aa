"""A Hugging Face endpoint: which one it is, and asking it something, once and briefly."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from localspec.hub.hubfaults import UPGRADE, HubFaults
from localspec.hub.time_limit import within
from localspec.pairs.pair import HubSource
from localspec.system.version import VERSION

PROBE_SECONDS = 5.0
NAMED: dict[str, Any] = {"library_name": "localspec", "library_version": VERSION}
"""Who asks, as huggingface_hub takes it: its requests then begin their user agent with `localspec/VERSION`."""

T = TypeVar("T")


def endpoint() -> str:
    """The address in HF_ENDPOINT, by default that of the public hub, without a slash at its end."""
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def headers() -> dict[str, str]:
    """What is sent with every request: our name, and the user's token if there is one."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined,unused-ignore]

    # The bytes themselves are wanted: a compressed answer has no length and no ranges.
    with _quiet():
        return build_hf_headers(**NAMED) | {"Accept-Encoding": "identity"}


def faults_of(file: str, source: HubSource, otherwise: str = UPGRADE) -> HubFaults:
    """Makes the errors for `file` (or whatever is asked for) at this endpoint with this user's token."""
    return HubFaults(file, source, endpoint(), "authorization" in headers(), otherwise)


def ask(faults: HubFaults, call: Callable[[], T], seconds: float | None = None) -> T:
    """What `call` returns. Raises DownloadError for any exception, and after `seconds` (None: PROBE_SECONDS)."""
    try:
        with _quiet():
            return within(PROBE_SECONDS if seconds is None else seconds, call)
    except Exception as error:
        raise faults.from_exception(error) from error


class _Quiet:
    """huggingface_hub without its telemetry and without its advice to anonymous users, while any thread wants that.

    Its telemetry is a request for a list of programs that may run it, and what it finds of them in its user agent.
    The application may have imported it before, and may use it: what it decided then is kept for the application.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._level = logging.NOTSET
        self._silent = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        from huggingface_hub import constants

        logger = logging.getLogger("huggingface_hub")
        with self._lock:
            if self._depth == 0:
                self._level = logger.level
                logger.setLevel(logging.ERROR)
                self._silent = constants.HF_HUB_DISABLE_TELEMETRY
                if not os.environ.get("HF_HUB_DISABLE_TELEMETRY"):
                    constants.HF_HUB_DISABLE_TELEMETRY = True
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if self._depth == 0:
                    logger.setLevel(self._level)
                    constants.HF_HUB_DISABLE_TELEMETRY = self._silent


_quiet = _Quiet()
