"""Memory, and whether the machine has time for a model."""

from __future__ import annotations

import os
from collections.abc import Iterator

from localspec.doctor.finding import Finding, note, ok
from localspec.pairs.catalogue import DEFAULT_PAIR, pair
from localspec.system.cores import physical_cores
from localspec.system.progress import readable
from localspec.system.ram import container_limit, free_memory, total_memory

_BUSY = 0.5
_LOOK_SECONDS = 0.5


def check_memory() -> Iterator[Finding]:
    """Total and free memory, against what the default pair takes."""
    total, free, needed = total_memory(), free_memory(), pair(DEFAULT_PAIR).bytes
    fact = f"{readable(free)} free of {readable(total)}"
    if container_limit() is not None and container_limit() == total:
        fact += ", which a container sets as its limit"
    data: dict[str, object] = {"total_bytes": total, "free_bytes": free}
    if free < needed:
        fact += f"; the default pair alone takes {readable(needed)} and its context"
        yield note("memory", fact, "Close other programs, or take a smaller pair: localspec suggest.", **data)
    else:
        yield ok("memory", fact, **data)


def check_load() -> Iterator[Finding]:
    """How busy other programs keep the processor now: speeds measured meanwhile are wrong."""
    import psutil

    share = psutil.cpu_percent(interval=_LOOK_SECONDS) / 100
    yield _load(share, _load_average())


def _load(share: float, average: float | None) -> Finding:
    fact = f"the processor is {share:.0%} busy"
    if average is not None:
        fact += f", {average:.1f} tasks wanted to run in the last minute"
    fact += f" ({physical_cores()} cores)"
    data: dict[str, object] = {"busy_share": round(share, 3), "load_average": average}
    if share > _BUSY:
        return note("load", fact, "Answers are slower meanwhile; do not calibrate or bench now.", **data)
    return ok("load", fact, **data)


def _load_average() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
