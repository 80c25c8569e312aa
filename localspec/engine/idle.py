"""IdleTimer: frees what has not been used for a while."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol


class Owner(Protocol):
    """What has weights to free."""

    def unload_if_idle(self, seconds: float) -> float:
        """Free them if nobody used them for `seconds`; returns after how many seconds to look again."""


class IdleTimer:
    """Looks after an owner, which it does not keep alive, from a thread of its own until `stop`."""

    def __init__(self, owner: Owner, seconds: float) -> None:
        self._stopped = threading.Event()
        weakref.finalize(owner, self._stopped.set).atexit = False
        arguments = (weakref.ref(owner), self._stopped, seconds)
        threading.Thread(target=_look_after, args=arguments, name="localspec idle", daemon=True).start()

    def stop(self) -> None:
        """Free nothing any more."""
        self._stopped.set()


def _look_after(reference: weakref.ref[Owner], stopped: threading.Event, seconds: float) -> None:
    wait = seconds
    while not stopped.wait(wait):
        owner = reference()
        if owner is None:
            return
        wait = owner.unload_if_idle(seconds)
        del owner
