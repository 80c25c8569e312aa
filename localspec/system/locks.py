"""Locks between processes and threads, on any disk."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import BaseFileLock

POLL_SECONDS = 0.2
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP}


@contextmanager
def locked(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Holds the lock of that name, which ends with the process however that ends.

    waiting:  called again and again while another process or thread has the lock.
    A disk without locks (some network disks) gets a file instead that names its owner: if that was
    killed, the file is taken over.
    Raises OSError.
    """
    from filelock import FileLock, SoftFileLock

    native = FileLock(path, fallback_to_soft=False)
    held: BaseFileLock = native
    try:
        _acquire(native, waiting)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        held = SoftFileLock(path.with_suffix(".owner"))
        _acquire(held, waiting)
    try:
        yield
    finally:
        held.release()


def _acquire(lock: BaseFileLock, waiting: Callable[[], None] | None) -> None:
    from filelock import Timeout

    while not lock.is_locked:
        try:
            lock.acquire(timeout=POLL_SECONDS)
        except Timeout:
            if waiting is not None:
                waiting()
