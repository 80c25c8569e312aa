"""What the user's package index has, asked through pip: it knows the user's index, proxy and certificates."""

from __future__ import annotations

import re
import subprocess

from localspec.errors import AccessDenied, DownloadError, FileMissing, SourceUnreachable
from localspec.hub.pip import BROKEN, REFUSED, environment, no_way, pip_command, without_pip
from localspec.pairs.pair import WheelSource

_VERSIONS = re.compile(r"^Available versions: (.*)$", re.MULTILINE)
_CHECK_INDEX = "Check the connection and pip's index and proxy settings (`pip config list`)."


def index_versions(package: str, seconds: float = 15.0) -> list[str]:
    """Versions of `package` that the index offers for this Python, newest first. seconds: given to pip.

    Raises SourceUnreachable (also when the time is up), FileMissing, AccessDenied, or DownloadError without pip.
    """
    command = pip_command("index", "versions", package, "-vv", file=package)
    command += ["--disable-pip-version-check", "--no-input", "--retries=0", f"--timeout={seconds / 2:g}"]
    facts = {"file": package, "source": WheelSource.kind}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except subprocess.TimeoutExpired:
        message = f"The package index does not answer within {seconds:g} s."
        raise SourceUnreachable(message, _CHECK_INDEX, **facts) from None
    found = _VERSIONS.search(done.stdout)
    if done.returncode == 0 and found:
        return [version.strip() for version in found[1].split(",")]
    raise _fault(done.stdout, package, facts)


def _fault(log: str, package: str, facts: dict[str, str]) -> DownloadError:
    if "No module named pip" in log:
        return without_pip(package)
    if REFUSED.search(log):
        return AccessDenied(f"The package index refuses access to {package}.", _CHECK_INDEX, **facts)
    if (blocked := no_way(log, facts)) is not None:
        return blocked
    if BROKEN.search(log):
        return SourceUnreachable("The package index cannot be reached.", _CHECK_INDEX, **facts)
    return FileMissing(f"The package index has no {package}.", _CHECK_INDEX, **facts)
