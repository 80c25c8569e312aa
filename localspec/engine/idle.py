"""IdleTimer: does something for an owner that has not been used for a while."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

Owner = TypeVar("Owner", bound=object)
Look = Callable[[weakref.ref[Owner]], float | None]


class IdleTimer:
    """Looks after an owner, which it does not keep alive, from a thread of its own until `stop`.

    look: does what is due; returns after how many seconds to look again, None for never. First after `seconds`. It is
    given a reference to the owner, so that what takes long need not keep it alive.
    """

    def __init__(self, owner: Owner, look: Look[Owner], seconds: float, name: str = "idle") -> None:
        self._stopped = threading.Event()
        weakref.finalize(owner, self._stopped.set).atexit = False
        arguments = (weakref.ref(owner), look, self._stopped, seconds)
        threading.Thread(target=_look_after, args=arguments, name=f"localspec {name}", daemon=True).start()

    def stop(self) -> None:
        """Do nothing any more."""
        self._stopped.set()


def _look_after(
    reference: weakref.ref[Owner],
    look: Look[Owner],
    stopped: threading.Event,
    seconds: float,
) -> None:
    wait: float | None = seconds
    while wait is not None and not stopped.wait(wait):
        wait = look(reference)
