"""Asking: one process that computes, from its start to its end, as the process sees it that started it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

from localspec.errors import RpcError
from localspec.remote.child import ENTRY
from localspec.system.piped_child import PipedChild
from localspec.system.rpc_servers import greet

POLL_SECONDS = 0.05
"""How often whoever waits for an answer looks whether it is still wanted."""
_END_SECONDS = 2.0
"""How long one that closed its pipe may take to end."""
_AGAIN = "Try again: the models are then loaded anew."
_START = "Start the servers that have ended, and try again: the models are then loaded anew."

_PLACE = re.compile(r"^(?:\S*[/\\])?(?=\S+:\d+: )")
"""The folder of a file in which an assertion failed: that of whoever compiled it."""

Told = Callable[[Any], None]
Check = Callable[[], None]


def _pass_over(what: object) -> None:
    pass


def _go_on() -> None:
    pass


class Asking:
    """A child that computes. addresses: of the servers that it computes with.

    Whatever it is asked raises `RpcError` where it has ended, or ends meanwhile.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._child = PipedChild(ENTRY)
        self._numbers = itertools.count()
        self._lost = False

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._child.pid

    @property
    def lost(self) -> bool:
        """Whether it has ended."""
        return self._lost or not self._child.alive

    def begin(self, name: str, *arguments: object) -> int:
        """Ask for something, without waiting for the answer; its number."""
        number = next(self._numbers)
        self._child.pipe.send((number, name, arguments))
        return number

    def ask(self, name: str, *arguments: object, told: Told = _pass_over, check: Check = _go_on) -> Any:
        """`begin` and `wait`."""
        return self.wait(self.begin(name, *arguments), told=told, check=check)

    def wait(self, number: int, *, told: Told = _pass_over, check: Check = _go_on) -> Any:
        """What the child answers to the question of that number. Raises what it raised.

        told: hears what is said meanwhile. check: called all the while; what it raises ends the waiting. What the child
        then answers is passed over.
        """
        while True:
            check()
            try:
                answered, kind, value = self._child.receive(POLL_SECONDS)
            except TimeoutError:
                continue
            except EOFError:
                raise self._loss() from None
            if answered not in (number, None):
                continue  # for somebody who did not wait for it
            if kind == "told":
                told(value)
            elif kind == "error":
                raise value
            else:
                return value

    def cancel(self, number: int) -> None:
        """End the answer that was started by that number; it can be read to its end."""
        self._child.pipe.send((None, "cancel", (number,)))

    def leave(self) -> None:
        """End the answer that runs, if one does: nobody reads on."""
        if not self.lost:
            self.begin("leave")

    def end(self, seconds: float = 0.0) -> None:
        """End the process: by force where it does not end within `seconds`."""
        self._lost = True
        self._child.end(seconds)

    def _loss(self) -> RpcError:
        """What to say of a process that ended by itself."""
        self._lost = True
        ended = self._child.end(_END_SECONDS)
        words = ended.said.splitlines()[-1:] if ended.code else []
        gone = [error.message for address in self._addresses if (error := _fault_of(address)) is not None]
        said = f": {_PLACE.sub('', words[0])[:300].rstrip('.')}" if words else ""
        return RpcError(
            " ".join([*gone, f"The process that computes {ended.how}{said}."]),
            _START if gone else _AGAIN,
            code=ended.code,
            addresses=list(self._addresses),
        )


def _fault_of(address: str) -> RpcError | None:
    try:
        greet(address)
    except RpcError as error:
        return error
    return None
