"""How much memory there is for models: the machine's, or what a container leaves of it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_STATISTICS = ("/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory/memory.stat")
_USED = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")


def total_memory() -> int:
    """Bytes of memory that this process could have at most."""
    import psutil

    total = int(psutil.virtual_memory().total)
    return min(total, container_limit() or total)


def free_memory() -> int:
    """Bytes of memory that are free now, or hold nothing but copies of files."""
    import psutil

    free = int(psutil.virtual_memory().available)
    limit = container_limit()
    return free if limit is None else max(0, min(free, limit - _held()))


def container_limit() -> int | None:
    """Bytes that a container (cgroup) allows, or None where there is no limit."""
    return _figure(_LIMITS)


def _held() -> int:
    """Bytes the container holds and could not give back by dropping copies of files."""
    copies = 0
    for path in _STATISTICS:
        with suppress(OSError, ValueError):
            lines = dict(line.split() for line in Path(path).read_text(encoding="ascii").splitlines())
            copies = int(lines.get("total_inactive_file", lines.get("inactive_file", 0)))
            break
    return (_figure(_USED) or 0) - copies


def _figure(paths: tuple[str, ...]) -> int | None:
    for path in paths:
        with suppress(OSError, ValueError):
            value = int(Path(path).read_text(encoding="ascii"))
            return value if value < 1 << 60 else None  # an unlimited version-1 group says almost 2^63
    return None
