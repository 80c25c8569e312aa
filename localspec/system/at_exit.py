"""What must be closed before the interpreter takes its modules apart."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from localspec.system.forks import is_forked


class Closable(Protocol):
    """What must be freed before the interpreter is gone."""

    def close_at_exit(self) -> None: ...


_alive: weakref.WeakSet[Any] = weakref.WeakSet()
_last: list[Callable[[], None]] = []


def close_at_exit(thing: Closable) -> None:
    """Close `thing` before the interpreter tears modules down, if nobody did before."""
    _register()
    _alive.add(thing)


def close_before_library(silence: Callable[[], None]) -> None:
    """Called by a compute library that was just loaded: everything is closed before what the library itself does at
    exit, and then `silence` keeps what did not end in time from calling into an interpreter that is gone.
    """
    _last.append(silence)
    atexit.register(_close_all)


@cache
def _register() -> None:
    """Close at exit even if no library is there yet: a load may be under way."""
    atexit.register(_close_all)


def _close_all() -> None:
    if is_forked():
        return
    for thing in list(_alive):
        thing.close_at_exit()
    for silence in _last:
        silence()
