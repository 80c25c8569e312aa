"""All checks, one after the other; one that breaks is a finding itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from localspec.doctor.environment import check_environment
from localspec.doctor.finding import Finding, problem
from localspec.doctor.folders import check_cache, check_disk, check_store
from localspec.doctor.library import check_library
from localspec.doctor.machine import check_load, check_memory
from localspec.doctor.network import check_network
from localspec.doctor.python import check_python
from localspec.doctor.rpc import check_rpc
from localspec.errors import LocalspecError
from localspec.system.packages import mend

Check = Callable[[], Iterator[Finding]]


def examine(*, offline: bool = False, home: Path | None = None, rpc: Sequence[str] = ()) -> Iterator[Finding]:
    """Finding after finding, each as soon as it is known. offline: no network, but for servers that are named.

    rpc: checked addresses of RPC servers. Raises nothing.
    """
    checks: dict[str, Check] = {
        "Python": check_python,
        "load": check_load,  # before the library is tried, which is load itself
        "llama.cpp": lambda: check_library(home=home),
        "memory": check_memory,
        "disk": lambda: check_disk(home),
        "store": lambda: check_store(home),
        "Hugging Face cache": check_cache,
        "network": lambda: check_network(offline),
        "RPC": lambda: check_rpc(rpc),
        "variables": check_environment,
    }
    for topic, check in checks.items():
        yield from _guarded(topic, check)


def _guarded(topic: str, check: Check) -> Iterator[Finding]:
    try:
        yield from check()
    except LocalspecError as error:
        yield problem(topic, error.message, error.command)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        yield problem(
            topic, f"This could not be checked: {reason}.", mend("Install localspec again.", "localspec")
        )
