"""IdleTimer: does something for an owner that has not been used for a while."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

Owner = TypeVar("Owner", bound=object)


class IdleTimer:
    """Looks after an owner, which it does not keep alive, from a thread of its own until `stop`.

    look: does what is due; returns after how many seconds to look again, None for never. First after `seconds`.
    """

    def __init__(
        self, owner: Owner, look: Callable[[Owner], float | None], seconds: float, name: str = "idle"
    ) -> None:
        self._stopped = threading.Event()
        weakref.finalize(owner, self._stopped.set).atexit = False
        arguments = (weakref.ref(owner), look, self._stopped, seconds)
        threading.Thread(target=_look_after, args=arguments, name=f"localspec {name}", daemon=True).start()

    def stop(self) -> None:
        """Do nothing any more."""
        self._stopped.set()


def _look_after(
    reference: weakref.ref[Owner],
    look: Callable[[Owner], float | None],
    stopped: threading.Event,
    seconds: float,
) -> None:
    wait: float | None = seconds
    while wait is not None and not stopped.wait(wait):
        owner = reference()
        if owner is None:
            return
        wait = look(owner)
        del owner
